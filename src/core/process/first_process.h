// A container's first process (PID 1) takes a signal only if it has a handler for it: the kernel withholds default
// actions, so that SIGTERM, by which pods are ended, would do nothing.
#pragma once

namespace lockstep {

// As PID 1: from now on SIGTERM, SIGINT and SIGHUP end this process with 128 + their number, as far as no other code
// handles or ignores them. In any other process: nothing.
void end_on_signals_as_first_process();

// Lets the signal end this process, whatever its handler was: it is sent once more for the default action, or stood in
// for as PID 1.
void end_by_signal(int signal);

// The signal has no handler yet: its action is the default one, or the one that stands in for it here.
bool is_default_action(void (*handler)(int));

}  // namespace lockstep

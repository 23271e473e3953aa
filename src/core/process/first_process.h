// A container's first process (PID 1) receives a signal only if it has a handler for it: the kernel suppresses default
// actions, so SIGTERM, which ends pods, would do nothing.
#pragma once

namespace lockstep {

// As PID 1: from now on SIGTERM, SIGINT and SIGHUP end this process with exit code 128 + their number, unless other
// code handles or ignores them. In any other process: does nothing.
void end_on_signals_as_first_process();

// Ends this process by the signal, whatever its handler was: raises it again with the default action, or emulates that
// as PID 1.
void end_by_signal(int signal);

// True if the signal has no handler yet: its action is the default one, or the one that emulates it here.
bool is_default_action(void (*handler)(int));

}  // namespace lockstep

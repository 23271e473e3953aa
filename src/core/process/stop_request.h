// Requests to end this process early that come as signals: a program that asks for them saves its state first.
#pragma once

namespace lockstep {

// From now on SIGTERM and SIGUSR2 are remembered instead of ending this process, unless the program has handlers of its
// own for them.
void remember_stop_signals();
bool is_stop_requested();
// A peer is lost, and there is nothing left to save together: a SIGTERM from now on ends this process as it would have
// before remember_stop_signals().
void end_at_stop_signals();
// A handler of Lockstep for SIGTERM, which remember_stop_signals() may replace until end_at_stop_signals().
void note_end_handler(void (*handler)(int));

}  // namespace lockstep

#include "src/core/process/first_process.h"

#include <unistd.h>

#include <csignal>
#include <initializer_list>

namespace lockstep {

namespace {

// The exit code that a shell gives to a process that a signal has ended.
void end(int signal) { ::_exit(128 + signal); }

}  // namespace

void end_on_signals_as_first_process() {
  if (::getpid() != 1) return;
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_DFL) continue;
    action = {};
    action.sa_handler = end;
    ::sigaction(signal, &action, nullptr);
  }
}

void end_by_signal(int signal) {
  if (::getpid() == 1) end(signal);
  std::signal(signal, SIG_DFL);
  ::kill(::getpid(), signal);
}

bool is_default_action(void (*handler)(int)) { return handler == SIG_DFL || handler == end; }

}  // namespace lockstep

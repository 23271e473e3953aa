// Signals to the launcher, as a descriptor to poll, and signals from it to the processes that handle them.
#pragma once

#include <sys/types.h>

#include <csignal>

#include "src/core/fd.h"

namespace lockstep::launch {

// While it lives, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGUSR1 and SIGCHLD are read from fd() instead of
// being delivered, SIGPIPE is ignored (a write says EPIPE) and SIGCHLD has its default action (a parent may have left it
// ignored, and then waitpid() could wait for no child). Signals that were ignored before (nohup) stay ignored. Everything is put
// back when it ends.
class SignalGate {
 public:
  SignalGate();  // throws Error
  ~SignalGate();
  SignalGate(const SignalGate&) = delete;
  SignalGate& operator=(const SignalGate&) = delete;

  int fd() const { return fd_.get(); }
  int next();             // a signal that has arrived, or 0; does not block
  void put_back() const;  // in a rank: as it was before the gate

 private:
  sigset_t mask_before_{};
  struct sigaction pipe_before_ {};
  struct sigaction child_before_ {};
  Fd fd_;
};

// Sends `signal` to those processes of the group alone that have a handler for it: it would end the others. Returns their number.
int signal_group_where_caught(pid_t group, int signal);

}  // namespace lockstep::launch

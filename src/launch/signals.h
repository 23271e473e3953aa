// The launcher's signals, as something to poll.
#pragma once

#include <csignal>

#include "src/core/fd.h"

namespace lockstep::launch {

// While it lives, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGUSR1 and SIGCHLD are read from fd() instead of
// being delivered, SIGPIPE is ignored (a write says EPIPE) and SIGCHLD has its default action (a parent may have left it
// ignored, and then nobody could be waited for). What was ignored before (nohup) stays ignored. Everything is put
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

}  // namespace lockstep::launch

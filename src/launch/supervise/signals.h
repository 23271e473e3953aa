// Signals to the launcher, as a descriptor to poll, and signals from it to the processes that handle them.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <string>

#include "src/core/process/fd.h"

namespace lockstep::launch {

// While it lives, SIGCHLD, SIGTSTP and every signal that would end this process, but for those of its own faults
// (SIGSEGV, SIGABRT, ...), are read from fd() instead of being delivered; SIGPIPE and SIGXFSZ are ignored (a write says
// EPIPE or EFBIG) and SIGCHLD has its default action (a parent may have left it ignored, and then waitpid() could wait
// for no child). Signals that were ignored before (nohup) stay ignored. Everything is put back when it ends.
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
  struct sigaction file_size_before_ {};
  struct sigaction child_before_ {};
  Fd fd_;
};

// Signals to the launcher that end the job; any other that it reads is a notice (SIGUSR2 before a time limit), for the
// ranks to act on.
bool ends_job(int signal);

// "SIGUSR2", "SIGRTMIN+3"
std::string name_of_signal(int signal);

// Sends `signal` to those processes of the group alone that have a handler for it: it would end the others. Returns
// their number.
int signal_group_where_caught(pid_t group, int signal);

}  // namespace lockstep::launch

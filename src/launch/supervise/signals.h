// Signals to the launcher, as a descriptor to poll; and signals from the launcher to the processes that handle them.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <string>

#include "src/core/process/fd.h"

namespace lockstep::launch {

// While this object exists, SIGCHLD, SIGTSTP and every signal that would end this process are read from fd() instead of
// being delivered, except those of its own faults (SIGSEGV, SIGABRT, ...). SIGPIPE and SIGXFSZ are ignored (writes
// return EPIPE or EFBIG), and SIGCHLD has its default action (if a parent has set it to be ignored, waitpid() could not
// wait for a child). Signals that were ignored before (nohup) stay ignored. The destructor restores everything.
class SignalGate {
 public:
  SignalGate();  // throws Error
  ~SignalGate();
  SignalGate(const SignalGate&) = delete;
  SignalGate& operator=(const SignalGate&) = delete;

  int fd() const { return fd_.get(); }
  int next();             // a signal that has arrived, or 0; does not block
  void put_back() const;  // for a rank: restores the state before the gate

 private:
  sigset_t mask_before_{};
  struct sigaction pipe_before_ {};
  struct sigaction file_size_before_ {};
  struct sigaction child_before_ {};
  Fd fd_;
};

// Whether the signal to the launcher ends the job. Any other that it reads is a notice (SIGUSR2 before a time limit) on
// which the ranks may act.
bool ends_job(int signal);

// "SIGUSR2", "SIGRTMIN+3"
std::string name_of_signal(int signal);

// Sends `signal` only to those processes of the group that have a handler for it, since it would end the others.
// Returns their number.
int signal_group_where_caught(pid_t group, int signal);

}  // namespace lockstep::launch

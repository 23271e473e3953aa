// Ownership of a descriptor that belongs to this process alone: a forked child does not get it.
//
// That a pipe or a connection has ended tells peers that the process behind it has. A child that fork() has made holds
// copies of all that is open (exec would close them), and may live on: its parent's death would go unseen. So fork()
// puts /dev/null in the place of each; the number stays taken, and the child's copies of its parent's objects cannot do
// harm with it.
#pragma once

#include "src/core/process/fd.h"

namespace lockstep {

class ProcessFd {
 public:
  ProcessFd() = default;
  ProcessFd(Fd fd);  // not explicit: any Fd may become the process's
  ProcessFd(ProcessFd&&) noexcept = default;
  ProcessFd& operator=(ProcessFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::move(other.fd_);
    }
    return *this;
  }
  ~ProcessFd() { reset(); }

  int get() const { return fd_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }
  void reset();

 private:
  Fd fd_;
};

}  // namespace lockstep

// Ownership of a descriptor that belongs only to this process: a forked child does not inherit it.
//
// The end of a pipe or connection tells peers that the process at its other end has exited. A child made by fork()
// holds copies of all open descriptors (exec would close them) and may live on, so its parent's death would go
// unnoticed. Therefore fork() replaces each of them by /dev/null in the child; the number stays in use, and the child's
// copies of its parent's objects can do no harm with it.
#pragma once

#include "src/core/process/fd.h"

namespace lockstep {

class ProcessFd {
 public:
  ProcessFd() = default;
  ProcessFd(Fd fd);  // not explicit: any Fd may become a ProcessFd
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

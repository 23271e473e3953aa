#include "src/core/process/process_fd.h"

#include <fcntl.h>
#include <pthread.h>

#include <mutex>
#include <set>

namespace lockstep {

namespace {

// The descriptors of all ProcessFds. Locked during a fork, so that the child finds the list consistent.
class Registry {
 public:
  static Registry& get() {
    static auto& registry = *new Registry;  // never destroyed: a thread may fork while the program ends
    return registry;
  }

  void add(int fd) {
    const std::lock_guard lock(mutex_);
    fds_.insert(fd);
  }
  void close(Fd& fd) {
    const std::lock_guard lock(mutex_);
    fds_.erase(fd.get());
    fd.reset();
  }

 private:
  Registry() : null_(::open("/dev/null", O_RDWR | O_CLOEXEC)) {
    pthread_atfork([] { get().mutex_.lock(); }, [] { get().mutex_.unlock(); }, [] { get().forget_in_child(); });
  }

  void forget_in_child() {
    for (const int fd : fds_)
      if (!null_ || ::dup3(null_.get(), fd, O_CLOEXEC) < 0) ::close(fd);
    mutex_.unlock();
  }

  const Fd null_;
  std::mutex mutex_;
  std::set<int> fds_;
};

}  // namespace

ProcessFd::ProcessFd(Fd fd) : fd_(std::move(fd)) {
  if (fd_) Registry::get().add(fd_.get());
}

void ProcessFd::reset() {
  if (fd_) Registry::get().close(fd_);
}

}  // namespace lockstep

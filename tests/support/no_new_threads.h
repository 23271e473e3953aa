// Makes the system refuse new threads to this process, as at a limit on processes.
#pragma once

#include <pthread.h>

#include <cstddef>

namespace lockstep::test_support {

// While it exists, a new thread requests a stack larger than the address space, and gets EAGAIN.
class NoNewThreads {
 public:
  NoNewThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t impossible;
    pthread_attr_init(&impossible);
    pthread_attr_setstacksize(&impossible, std::size_t{1} << 47);
    pthread_setattr_default_np(&impossible);
    pthread_attr_destroy(&impossible);
  }
  ~NoNewThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  NoNewThreads(const NoNewThreads&) = delete;
  NoNewThreads& operator=(const NoNewThreads&) = delete;

 private:
  pthread_attr_t before_;
};

}  // namespace lockstep::test_support

#include "python/backend/fork_count.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

namespace lockstep::torch_backend {

namespace {

// The forks between the process that loaded this library and the one that asks. Counted, because to ask the kernel for
// the process would take a tenth of what a small call takes here.
int forks() {
  static std::atomic<int> count{0};
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, [] { count.fetch_add(1); });
  return count.load(std::memory_order_relaxed);
}

}  // namespace

OwnProcess::OwnProcess() : process_(::getpid()), forks_(forks()) {}
bool OwnProcess::is_this() const { return forks_ == forks(); }
std::string OwnProcess::refusal() const {
  return "the process group was made in process " + std::to_string(process_) +
         ", which has forked this one; a child cannot use its parent's connections. Make a group in the child, or "
         "start "
         "it with spawn";
}

}  // namespace lockstep::torch_backend

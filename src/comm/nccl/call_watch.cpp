#include "src/comm/nccl/call_watch.h"

#include <chrono>
#include <utility>

namespace lockstep::nccl {

namespace {

// The time between two checks. The thread is not woken for a call, since that would take longer than most calls.
constexpr auto kPeriod = std::chrono::milliseconds(10);

}  // namespace

CallWatch::CallWatch(std::function<void()> abort) : abort_(std::move(abort)), thread_([this] { serve(); }) {}

CallWatch::~CallWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

bool CallWatch::has_call() const {
  const std::lock_guard lock(mutex_);
  return call_ != nullptr;
}

void CallWatch::over(const std::function<void()>& look, const std::function<void()>& call) {
  Call mine{look, nullptr};
  {
    const std::lock_guard lock(mutex_);
    call_ = &mine;
  }
  std::exception_ptr thrown;
  try {
    call();
  } catch (...) {
    thrown = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    call_ = nullptr;
  }
  if (mine.failure) std::rethrow_exception(mine.failure);
  if (thrown) std::rethrow_exception(thrown);
}

void CallWatch::serve() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    changed_.wait_for(lock, kPeriod);
    if (call_ == nullptr) continue;
    try {
      if (!call_->failure) call_->look();
    } catch (...) {
      call_->failure = std::current_exception();
    }
    if (!call_->failure) continue;
    lock.unlock();
    abort_();
    lock.lock();
  }
}

}  // namespace lockstep::nccl

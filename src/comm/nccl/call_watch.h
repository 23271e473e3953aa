// Watches NCCL calls that block: a call that waits for its peers can be ended only by ncclCommAbort from another
// thread.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace lockstep::nccl {

class CallWatch {
 public:
  // `abort` ends the running call; a thread of this class calls it until the call has ended.
  explicit CallWatch(std::function<void()> abort);
  ~CallWatch();
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

  // Makes the call in this thread; one at a time. The other thread calls `look` every few milliseconds; if it throws,
  // the call is ended, and this function throws that error in place of the call's.
  void over(const std::function<void()>& look, const std::function<void()>& call);
  bool has_call() const;

 private:
  struct Call {
    const std::function<void()>& look;
    std::exception_ptr failure;
  };
  void serve();

  const std::function<void()> abort_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Call* call_ = nullptr;  // the running call
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace lockstep::nccl

// Watches over calls of NCCL that block: nothing but ncclCommAbort, from another thread, ends one that waits for its
// peers.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace lockstep::nccl {

class CallWatch {
 public:
  // `abort` ends the call under way; it is called, by a thread of this class, until the call has ended.
  explicit CallWatch(std::function<void()> abort);
  ~CallWatch();
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

  // Makes the call, in this thread, one at a time. Every few milliseconds `look` is called, by the other thread; what
  // it throws ends the call, and is thrown here in place of what the call throws.
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
  Call* call_ = nullptr;  // under way
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace lockstep::nccl

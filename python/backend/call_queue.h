// The order of a group's collectives, and the threads that run them.
//
// A collective that its caller waits for runs in the caller's thread: a hand-over would cost more than a small
// collective. An asynchronous one is run by a worker thread, or by the first thread that waits for it, if no worker has
// begun it yet. One runs at a time, in the order of issue, as the group requires.
//
// The callbacks of a future run on the thread that ran the collective, after it has let the next one begin: a callback
// may issue collectives and wait for them. While every worker is in a callback, another is started.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "python/backend/fork_count.h"

namespace lockstep::torch_backend {

class CallQueue;

// Of every work: its value is a list of tensors.
c10::intrusive_ptr<c10::ivalue::Future> new_future();

// A collective, and the Work that c10d sees.
class CallWork : public c10d::Work {
 public:
  CallWork(int rank, c10d::OpType type, const char* title, std::vector<at::Tensor> inputs, std::uint64_t number,
           std::function<void()> run, std::vector<at::Tensor> outputs, std::shared_ptr<CallQueue> queue);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::uint64_t getSequencenumber() const override { return number_; }

 private:
  friend class CallQueue;
  // Runs it, and keeps its error. Returns what ran: it may have the last reference to a tensor, for whose end Python's
  // lock is needed, so it is destroyed after those who wait have been told, and with no mutex held.
  std::function<void()> execute();
  void finish_with(std::exception_ptr error);  // without execute(): the error
  void complete_future();                      // runs the callbacks
  bool is_done() const { return done_.load(std::memory_order_acquire); }

  const std::uint64_t number_;
  std::function<void()> run_;  // empty once it has run
  std::vector<at::Tensor> outputs_;
  const std::shared_ptr<CallQueue> queue_;
  std::atomic<bool> done_{false};
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // guarded by mutex_
};

class CallQueue : public std::enable_shared_from_this<CallQueue> {
 public:
  // Issues the work. If `is_async`, returns at once; otherwise the work is done when it returns.
  void issue(const c10::intrusive_ptr<CallWork>& work, bool is_async);
  // Returns when the work is done, which the calling thread may have run itself, or at the timeout (0: none). Whether
  // it is done.
  bool await(CallWork& work, std::chrono::milliseconds timeout);
  // Runs `job` on a worker, at any time and beside the collectives. It may block. False if the queue is closed: then
  // it is not run.
  bool run_beside(std::function<void()> job);
  // Waits for the work that is running; drops the others, whose wait() then throws `why`, and refuses later ones.
  void close(const std::string& why);
  // Runs the jobs that no worker has begun, and waits for the ends of the others. After close(), when the group has
  // ended, so that no job waits for ever.
  void join();
  // Throws in a process that was forked from that of the queue.
  void check_process(const char* call, int rank) const;

 private:
  using Lock = std::unique_lock<std::mutex>;
  void run_front(Lock& lock);
  void run(Lock& lock, c10::intrusive_ptr<CallWork> work);
  template <typename Body> void leave_order(Lock& lock, Body&& body);
  void ensure_worker(Lock& lock, std::size_t wanted = 1);
  void serve();

  const OwnProcess process_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<c10::intrusive_ptr<CallWork>> waiting_;
  std::deque<std::function<void()>> beside_;
  bool is_running_ = false;      // a collective
  bool runs_on_worker_ = false;  // it, which counts as free
  bool is_closed_ = false;
  std::string why_closed_;
  std::size_t free_workers_ = 0;  // not in callbacks
  std::vector<std::thread> workers_;
};

}  // namespace lockstep::torch_backend

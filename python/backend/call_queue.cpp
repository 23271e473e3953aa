#include "python/backend/call_queue.h"

#include <sched.h>

#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <utility>

#include "python/backend/errors.h"

namespace lockstep::torch_backend {

namespace {

using Clock = std::chrono::steady_clock;

// A thread that waits for a collective that runs elsewhere yields its processor this often before it sleeps: waking up
// takes longer than a small collective.
constexpr int kYields = 50;

thread_local bool is_worker = false;
thread_local bool is_beside = false;  // a worker that runs callbacks or a job beside the collectives

c10::intrusive_ptr<c10::ivalue::Future> new_future() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
}

}  // namespace

CallWork::CallWork(int rank, c10d::OpType type, const char* title, std::vector<at::Tensor> inputs, std::uint64_t number,
                   std::function<void()> run, std::vector<at::Tensor> outputs, std::shared_ptr<CallQueue> queue)
    : Work(rank, type, at::hasCallbacks() ? title : nullptr,
           at::hasCallbacks() ? std::optional(std::move(inputs)) : std::nullopt),
      number_(number),
      run_(std::move(run)),
      outputs_(std::move(outputs)),
      queue_(std::move(queue)) {}

void CallWork::execute() {
  std::exception_ptr error;
  try {
    run_();
  } catch (...) {
    error = as_torch_error(std::current_exception());
  }
  finish_with(std::move(error));
}

void CallWork::fail(std::exception_ptr error) { finish_with(std::move(error)); }

void CallWork::finish_with(std::exception_ptr error) {
  run_ = nullptr;
  const std::lock_guard lock(mutex_);
  exception_ = std::move(error);
  completed_ = true;
  if (recordFunctionEndCallback_) std::exchange(recordFunctionEndCallback_, nullptr)();
  done_.store(true, std::memory_order_release);
}

void CallWork::complete_future() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(mutex_);
    future = future_;
  }
  if (!future || future->completed()) return;  // getFuture() has, if the work was done before
  if (exception_)
    future->setErrorIfNeeded(exception_);
  else
    future->markCompleted(c10::IValue(outputs_));
}

bool CallWork::isCompleted() { return is_done(); }
bool CallWork::isSuccess() const { return is_done() && !exception_; }
std::exception_ptr CallWork::exception() const { return is_done() ? exception_ : nullptr; }
std::vector<at::Tensor> CallWork::result() { return outputs_; }

bool CallWork::wait(std::chrono::milliseconds timeout) {
  if (!is_done() && !queue_->await(*this, timeout))
    C10_THROW_ERROR(DistBackendError, "lockstep: wait() on rank " + std::to_string(rank_) + ": " +
                                          c10d::opTypeToString(opType_) + " #" + std::to_string(number_) +
                                          " is not done after " + std::to_string(timeout.count()) +
                                          " ms; it goes on, and may be waited for again");
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

// A work that is done has run its callbacks, or none had been asked for: the future is completed here.
c10::intrusive_ptr<c10::ivalue::Future> CallWork::getFuture() {
  const std::lock_guard lock(mutex_);
  if (future_) return future_;
  future_ = new_future();
  if (is_done() && exception_) future_->setError(exception_);
  if (is_done() && !exception_) future_->markCompleted(c10::IValue(outputs_));
  return future_;
}

void CallQueue::issue(const c10::intrusive_ptr<CallWork>& work, bool is_async) {
  Lock lock(mutex_);
  if (is_closed_) {
    lock.unlock();
    C10_THROW_ERROR(DistBackendError, why_closed_);
  }
  if (!is_async && !is_running_ && waiting_.empty()) {
    run(lock, work);
    return;
  }
  waiting_.push_back(work);
  if (is_async) {
    ensure_worker(lock);
    changed_.notify_all();
    return;
  }
  lock.unlock();
  await(*work, kNoTimeout);
}

bool CallQueue::await(CallWork& work, std::chrono::milliseconds timeout) {
  const auto until = Clock::now() + timeout;
  Lock lock(mutex_);
  for (int yields = 0; !work.is_done();) {
    if (!is_running_ && !waiting_.empty()) {
      run_front(lock);
    } else if (yields++ < kYields) {
      lock.unlock();
      sched_yield();
      lock.lock();
    } else if (timeout == kNoTimeout) {
      changed_.wait(lock);
    } else if (changed_.wait_until(lock, until) == std::cv_status::timeout) {
      break;
    }
  }
  return work.is_done();
}

void CallQueue::run_front(Lock& lock) {
  const auto work = std::move(waiting_.front());
  waiting_.pop_front();
  run(lock, work);
}

// Runs the collective, and then its callbacks, during which another thread may run the next one.
void CallQueue::run(Lock& lock, const c10::intrusive_ptr<CallWork>& work) {
  is_running_ = true;
  lock.unlock();
  work->execute();
  lock.lock();
  is_running_ = false;
  changed_.notify_all();
  bool has_future;
  {
    const std::lock_guard work_lock(work->mutex_);
    has_future = static_cast<bool>(work->future_);
  }
  if (!has_future) return;
  leave_order(lock, [&] { work->complete_future(); });
}

// Runs what may block, or issue collectives and wait for them, on a thread that is not counted as free meanwhile.
template <typename Body> void CallQueue::leave_order(Lock& lock, Body&& body) {
  const bool was_free = is_worker && !is_beside;
  if (was_free) {
    is_beside = true;
    --free_workers_;
    if (!waiting_.empty() || !beside_.empty()) ensure_worker(lock);
  }
  lock.unlock();
  body();
  lock.lock();
  if (!was_free) return;
  is_beside = false;
  ++free_workers_;
}

void CallQueue::ensure_worker(Lock&) {
  if (free_workers_ > 0 || is_closed_) return;
  ++free_workers_;
  workers_.emplace_back([self = shared_from_this()] { self->serve(); });
}

void CallQueue::run_beside(std::function<void()> job) {
  Lock lock(mutex_);
  if (is_closed_) return;
  beside_.push_back(std::move(job));
  ensure_worker(lock);
  changed_.notify_all();
}

void CallQueue::serve() {
  is_worker = true;
  Lock lock(mutex_);
  while (!is_closed_) {
    if (!beside_.empty()) {
      const auto job = std::move(beside_.front());
      beside_.pop_front();
      leave_order(lock, job);
    } else if (!is_running_ && !waiting_.empty()) {
      run_front(lock);
    } else {
      changed_.wait(lock);
    }
  }
}

void CallQueue::close(const std::string& why) {
  Lock lock(mutex_);
  is_closed_ = true;
  why_closed_ = why;
  auto dropped = std::exchange(waiting_, {});
  changed_.notify_all();
  lock.unlock();
  const auto error =
      std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)}, why));
  for (const auto& work : dropped) {
    work->fail(error);
    work->complete_future();
  }
  changed_.notify_all();
  lock.lock();
  changed_.wait(lock, [this] { return !is_running_; });
}

void CallQueue::join() {
  Lock lock(mutex_);
  auto workers = std::exchange(workers_, {});
  lock.unlock();
  for (std::thread& worker : workers)
    if (worker.get_id() == std::this_thread::get_id())
      worker.detach();
    else
      worker.join();
}

}  // namespace lockstep::torch_backend

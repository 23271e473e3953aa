#include "python/backend/call_queue.h"

#include <sched.h>

#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "python/backend/errors.h"
#include "python/backend/python_lock.h"

namespace lockstep::torch_backend {

namespace {

using Clock = std::chrono::steady_clock;

// A thread that waits for a collective that runs elsewhere yields its processor this often before it sleeps: waking up
// takes longer than a small collective.
constexpr int kYields = 50;
constexpr std::chrono::hours kLongest(24 * 365);

thread_local bool is_worker = false;
thread_local bool is_beside = false;  // a worker that runs callbacks or a job beside the collectives

}  // namespace

c10::intrusive_ptr<c10::ivalue::Future> new_future() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
}

CallWork::CallWork(int rank, c10d::OpType type, const char* title, std::vector<at::Tensor> inputs, std::uint64_t number,
                   std::function<void()> run, std::vector<at::Tensor> outputs, std::shared_ptr<CallQueue> queue)
    : Work(rank, type, at::hasCallbacks() ? title : nullptr,
           at::hasCallbacks() ? std::optional(std::move(inputs)) : std::nullopt),
      number_(number),
      run_(std::move(run)),
      outputs_(std::move(outputs)),
      queue_(std::move(queue)) {}

std::function<void()> CallWork::execute() {
  auto run = std::exchange(run_, nullptr);
  std::exception_ptr error;
  try {
    run();
  } catch (...) {
    error = as_torch_error(std::current_exception());
  }
  finish_with(std::move(error));
  return run;
}

void CallWork::finish_with(std::exception_ptr error) {
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

void CallWork::synchronize() {
  const WithoutPythonLock released;
  wait(kNoTimeout);
}

bool CallWork::wait(std::chrono::milliseconds timeout) {
  if (!is_done()) queue_->check_process("wait()", rank_);
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
  const WithoutPythonLock released;
  if (!is_done()) queue_->check_process("get_future()", rank_);
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
    try {
      ensure_worker(lock);
    } catch (...) {  // the system has no thread for it
      waiting_.pop_back();
      throw;
    }
    changed_.notify_all();
    return;
  }
  lock.unlock();
  await(*work, kNoTimeout);
}

// With a timeout the call is left to a worker: this thread could not leave it in time.
bool CallQueue::await(CallWork& work, std::chrono::milliseconds timeout) {
  const bool is_bounded = timeout != kNoTimeout;
  const auto until = Clock::now() + (is_bounded ? std::min<std::chrono::milliseconds>(timeout, kLongest) : timeout);
  Lock lock(mutex_);
  if (is_bounded && !work.is_done()) ensure_worker(lock);
  for (int yields = 0; !work.is_done();) {
    if (!is_bounded && !is_running_ && !waiting_.empty()) {
      run_front(lock);
    } else if (yields++ < kYields) {
      lock.unlock();
      sched_yield();
      lock.lock();
    } else if (!is_bounded) {
      changed_.wait(lock);
    } else if (changed_.wait_until(lock, until) == std::cv_status::timeout) {
      break;
    }
  }
  return work.is_done();
}

void CallQueue::run_front(Lock& lock) {
  auto work = std::move(waiting_.front());
  waiting_.pop_front();
  run(lock, std::move(work));
}

// Runs the collective, and then its callbacks, during which another thread may run the next one. With the mutex held
// nothing of the caller's is destroyed.
void CallQueue::run(Lock& lock, c10::intrusive_ptr<CallWork> work) {
  is_running_ = true;
  runs_on_worker_ = is_worker && !is_beside;
  lock.unlock();
  auto has_run = work->execute();
  lock.lock();
  is_running_ = runs_on_worker_ = false;
  changed_.notify_all();
  bool has_future;
  {
    const std::lock_guard work_lock(work->mutex_);
    has_future = static_cast<bool>(work->future_);
  }
  const auto release = [&] {
    has_run = nullptr;
    if (has_future) work->complete_future();
    work.reset();
  };
  if (has_future) return leave_order(lock, release);
  lock.unlock();
  release();
  lock.lock();
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
  try {
    body();
  } catch (const std::exception& error) {  // of a callback in C++; those in Python keep theirs
    TORCH_WARN("lockstep: a callback of a future threw: ", error.what());
  }
  lock.lock();
  if (!was_free) return;
  is_beside = false;
  ++free_workers_;
}

void CallQueue::ensure_worker(Lock&, std::size_t wanted) {
  if (free_workers_ >= wanted || is_closed_) return;
  workers_.emplace_back([self = shared_from_this()] { self->serve(); });
  ++free_workers_;
}

bool CallQueue::run_beside(std::function<void()> job) {
  Lock lock(mutex_);
  if (is_closed_) return false;
  ensure_worker(lock, runs_on_worker_ ? 2 : 1);
  beside_.push_back(std::move(job));
  changed_.notify_all();
  return true;
}

void CallQueue::check_process(const char* call, int rank) const {
  if (!process_.is_this()) refuse(call, rank, process_.refusal());
}

void CallQueue::serve() {
  is_worker = true;
  Lock lock(mutex_);
  while (!is_closed_) {
    if (!beside_.empty()) {
      auto job = std::move(beside_.front());
      beside_.pop_front();
      leave_order(lock, [&] {
        job();
        job = nullptr;
      });
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
    work->finish_with(error);
    work->complete_future();
  }
  dropped.clear();
  lock.lock();
  changed_.notify_all();  // with the mutex: no thread has just found its work not done and does not sleep yet
  changed_.wait(lock, [this] { return !is_running_; });
}

void CallQueue::join() {
  Lock lock(mutex_);
  auto workers = std::exchange(workers_, {});
  auto jobs = std::exchange(beside_, {});
  lock.unlock();
  for (const auto& job : jobs) job();
  for (std::thread& worker : workers)
    if (worker.get_id() == std::this_thread::get_id())
      worker.detach();
    else
      worker.join();
}

}  // namespace lockstep::torch_backend

#include "python/backend/message_work.h"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "lockstep/core/error.h"
#include "python/backend/errors.h"
#include "python/backend/python_lock.h"

namespace lockstep::torch_backend {

namespace {

constexpr std::chrono::milliseconds kPumpTime(5);

// Waits for the work on a thread of the queue, and completes the future. At once if it is done, or if the queue is
// closed: then it is done, or its wait() throws.
void complete_beside(CallQueue& queue, const c10::intrusive_ptr<c10d::Work>& work,
                     const c10::intrusive_ptr<c10::ivalue::Future>& future) {
  const auto complete = [work, future] {
    try {
      work->wait(kNoTimeout);
    } catch (...) {
      future->setErrorIfNeeded(std::current_exception());
      return;
    }
    future->markCompleted(c10::IValue(work->result()));
  };
  if (work->isCompleted() || !queue.run_beside(complete)) complete();
}

// The future of a work, made by the first call.
c10::intrusive_ptr<c10::ivalue::Future> future_of(std::mutex& mutex, c10::intrusive_ptr<c10::ivalue::Future>& future,
                                                  CallQueue& queue, c10d::Work* work) {
  const WithoutPythonLock released;
  {
    const std::lock_guard lock(mutex);
    if (future) return future;
    future = new_future();
  }
  complete_beside(queue, c10::intrusive_ptr<c10d::Work>::reclaim_copy(work), future);
  return future;
}

}  // namespace

MessageWork::MessageWork(int rank, c10d::OpType type, const char* title, const at::Tensor& tensor, Operand operand,
                         std::uint64_t number, std::shared_ptr<CallQueue> queue)
    : Work(rank, type, at::hasCallbacks() ? title : nullptr,
           at::hasCallbacks() ? std::optional(std::vector<at::Tensor>{tensor}) : std::nullopt),
      tensor_(tensor),
      operand_(std::move(operand)),
      number_(number),
      queue_(std::move(queue)) {}

void MessageWork::finish_with(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (completed_) return;
  if (!error) operand_.copy_back();
  exception_ = std::move(error);
  completed_ = true;
  if (recordFunctionEndCallback_) std::exchange(recordFunctionEndCallback_, nullptr)();
  done_.store(true, std::memory_order_release);
}

bool MessageWork::isCompleted() {
  if (is_done()) return true;
  queue_->check_process("is_completed()", rank_);
  try {
    if (!message_.done()) return false;
    finish_with(nullptr);
  } catch (...) {
    finish_with(as_torch_error(std::current_exception()));
  }
  return true;
}

bool MessageWork::isSuccess() const { return is_done() && !exception_; }
std::exception_ptr MessageWork::exception() const { return is_done() ? exception_ : nullptr; }

void MessageWork::synchronize() {
  const WithoutPythonLock released;
  wait(kNoTimeout);
}

bool MessageWork::wait(std::chrono::milliseconds timeout) {
  if (!is_done()) {
    queue_->check_process("wait()", rank_);
    try {
      if (timeout == kNoTimeout) {
        message_.wait();
      } else if (!lockstep::wait_any(std::array{message_}, timeout)) {
        C10_THROW_ERROR(DistBackendError, "lockstep: wait() on rank " + std::to_string(rank_) + ": " +
                                              c10d::opTypeToString(opType_) + " is not done after " +
                                              std::to_string(timeout.count()) +
                                              " ms; it goes on, and may be waited for again");
      }
    } catch (const Error&) {
      finish_with(as_torch_error(std::current_exception()));
    }
    finish_with(nullptr);
  }
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> MessageWork::getFuture() { return future_of(mutex_, future_, *queue_, this); }

bool ManyWorks::isCompleted() {
  for (const auto& work : works_)
    if (!work->isCompleted()) return false;
  return true;
}

bool ManyWorks::isSuccess() const {
  for (const auto& work : works_)
    if (!work->isSuccess()) return false;
  return true;
}

std::exception_ptr ManyWorks::exception() const {
  for (const auto& work : works_)
    if (const auto error = work->exception()) return error;
  return nullptr;
}

void ManyWorks::synchronize() {
  const WithoutPythonLock released;
  wait(kNoTimeout);
}

bool ManyWorks::wait(std::chrono::milliseconds timeout) {
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& work : works_) {
    const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
    work->wait(timeout == kNoTimeout ? timeout : std::max(timeout - passed, std::chrono::milliseconds(1)));
  }
  return true;
}

std::vector<at::Tensor> ManyWorks::result() {
  std::vector<at::Tensor> results;
  for (const auto& work : works_)
    for (at::Tensor& tensor : work->result()) results.push_back(std::move(tensor));
  return results;
}

c10::intrusive_ptr<c10::ivalue::Future> ManyWorks::getFuture() { return future_of(mutex_, future_, *queue_, this); }

// A forked child begins with an empty list, and keeps its parent's in memory.
MessagePump::Shared& MessagePump::shared() {
  static std::atomic<Shared*> current{new Shared};  // never destroyed, because a group may outlive this file's objects
  Shared* found = current.load();
  if (found->process.is_this()) return *found;
  auto* const fresh = new Shared;
  if (current.compare_exchange_strong(found, fresh)) return *fresh;
  delete fresh;
  return *found;
}

void MessagePump::add(const c10::intrusive_ptr<MessageWork>& work) {
  const Works done = drop_done();
  Shared& all = shared();
  std::vector<std::shared_ptr<MessagePump>> waiting;
  {
    const std::lock_guard lock(all.mutex);
    all.messages.push_back(work);
    all.count.store(all.messages.size());
    for (const auto& pump : all.pumps)
      if (auto each = pump.lock(); each && each->in_collective_.load()) waiting.push_back(std::move(each));
  }
  for (const auto& pump : waiting) pump->start_moving();
}

void MessagePump::introduce(const std::shared_ptr<MessagePump>& pump) {
  const std::lock_guard lock(shared().mutex);
  std::erase_if(shared().pumps, [](const auto& each) { return each.expired(); });
  shared().pumps.push_back(pump);
}

// Removes the messages that are done, and returns them, because their ends may need Python's lock.
MessagePump::Works MessagePump::drop_done() {
  Works works, done;
  {
    const std::lock_guard lock(shared().mutex);
    works = shared().messages;
  }
  for (const auto& work : works)
    if (work->isCompleted()) done.push_back(work);
  const std::lock_guard lock(shared().mutex);
  std::erase_if(shared().messages, [](const auto& work) { return work->is_done(); });
  shared().count.store(shared().messages.size());
  return done;
}

void MessagePump::begin_collective() {
  in_collective_.store(true);  // before the look at the messages; add() looks in the other order
  if (shared().count.load() > 0) start_moving();
}

void MessagePump::start_moving() {
  if (is_moving_.exchange(true)) return;
  if (!queue_->run_beside([self = shared_from_this()] { self->move_messages(); })) is_moving_.store(false);
}

void MessagePump::move_messages() {
  do {
    while (in_collective_.load()) {
      const Works done = drop_done();
      Works works;
      {
        const std::lock_guard lock(shared().mutex);
        works = shared().messages;
      }
      if (works.empty()) break;
      std::vector<lockstep::Work> messages;
      for (const auto& work : works) messages.push_back(work->message());
      try {
        lockstep::wait_any(messages, kPumpTime);
      } catch (const Error&) {
        std::this_thread::sleep_for(kPumpTime);  // the owner's wait() says so; the others go on
      }
    }
    is_moving_.store(false);
    // A collective that has begun meanwhile has seen that this thread still moves messages.
  } while (in_collective_.load() && shared().count.load() > 0 && !is_moving_.exchange(true));
}

}  // namespace lockstep::torch_backend

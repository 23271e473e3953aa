#include "python/backend/message_work.h"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <array>
#include <thread>
#include <utility>

#include "lockstep/core/error.h"
#include "python/backend/errors.h"

namespace lockstep::torch_backend {

namespace {

constexpr std::chrono::milliseconds kPumpTime(5);

c10::intrusive_ptr<c10::ivalue::Future> future_of_tensors() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
}

// Waits for the work on a thread of the queue, and completes the future.
void complete_beside(CallQueue& queue, c10::intrusive_ptr<c10d::Work> work,
                     c10::intrusive_ptr<c10::ivalue::Future> future) {
  queue.run_beside([work = std::move(work), future = std::move(future)] {
    try {
      work->wait(kNoTimeout);
    } catch (...) {
      future->setErrorIfNeeded(std::current_exception());
      return;
    }
    future->markCompleted(c10::IValue(work->result()));
  });
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

bool MessageWork::wait(std::chrono::milliseconds timeout) {
  if (!is_done()) {
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

c10::intrusive_ptr<c10::ivalue::Future> MessageWork::getFuture() {
  const std::lock_guard lock(mutex_);
  if (!future_)
    complete_beside(*queue_, c10::intrusive_ptr<c10d::Work>::reclaim_copy(this), future_ = future_of_tensors());
  return future_;
}

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

bool ManyWorks::wait(std::chrono::milliseconds timeout) {
  for (const auto& work : works_) work->wait(timeout);
  return true;
}

std::vector<at::Tensor> ManyWorks::result() {
  std::vector<at::Tensor> results;
  for (const auto& work : works_)
    for (at::Tensor& tensor : work->result()) results.push_back(std::move(tensor));
  return results;
}

c10::intrusive_ptr<c10::ivalue::Future> ManyWorks::getFuture() {
  const std::lock_guard lock(mutex_);
  if (!future_)
    complete_beside(*queue_, c10::intrusive_ptr<c10d::Work>::reclaim_copy(this), future_ = future_of_tensors());
  return future_;
}

void MessagePump::add(const c10::intrusive_ptr<MessageWork>& work) {
  const std::lock_guard lock(mutex_);
  messages_.remove_if([](const auto& message) { return message->is_done(); });
  messages_.push_back(work);
  count_.store(messages_.size());
}

// Asks each message, which may be done meanwhile.
std::vector<c10::intrusive_ptr<MessageWork>> MessagePump::under_way() {
  const std::lock_guard lock(mutex_);
  messages_.remove_if([](const auto& message) { return message->isCompleted(); });
  count_.store(messages_.size());
  return {messages_.begin(), messages_.end()};
}

void MessagePump::begin_collective() {
  if (count_.load() == 0 || under_way().empty()) return;
  in_collective_.store(true);
  if (is_moving_.exchange(true)) return;
  queue_->run_beside([self = shared_from_this()] { self->move_messages(); });
}

void MessagePump::move_messages() {
  while (in_collective_.load()) {
    const auto works = under_way();
    if (works.empty()) break;
    std::vector<lockstep::Work> messages;
    for (const auto& work : works) messages.push_back(work->message());
    try {
      lockstep::wait_any(messages, kPumpTime);
    } catch (const Error&) {
      break;  // the owner's wait() says so
    }
  }
  is_moving_.store(false);
}

}  // namespace lockstep::torch_backend

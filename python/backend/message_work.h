// The Work of a message between two ranks, and what moves messages while their owner waits for a collective.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "lockstep/comm/work.h"
#include "python/backend/call_queue.h"
#include "python/backend/operand.h"

namespace lockstep::torch_backend {

class MessageWork : public c10d::Work {
 public:
  MessageWork(int rank, c10d::OpType type, const char* title, const at::Tensor& tensor, Operand operand,
              std::uint64_t number, std::shared_ptr<CallQueue> queue);

  // The message of a group, which was started with operand() and sender().
  void begin(lockstep::Work message) { message_ = std::move(message); }
  Operand& operand() { return operand_; }
  int* sender() { return &sender_; }

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override;
  int sourceRank() const override { return sender_; }
  std::vector<at::Tensor> result() override { return {tensor_}; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::uint64_t getSequencenumber() const override { return number_; }

  const lockstep::Work& message() const { return message_; }
  bool is_done() const { return done_.load(std::memory_order_acquire); }

 private:
  void finish_with(std::exception_ptr error);

  const at::Tensor tensor_;
  Operand operand_;
  const std::uint64_t number_;
  const std::shared_ptr<CallQueue> queue_;
  lockstep::Work message_;
  int sender_ = -1;
  std::atomic<bool> done_{false};
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // guarded by mutex_
};

// All works of a coalesced call. Done when the last is done.
class ManyWorks : public c10d::Work {
 public:
  ManyWorks(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works, std::shared_ptr<CallQueue> queue)
      : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)), queue_(std::move(queue)) {}

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::vector<c10::intrusive_ptr<c10d::Work>> works_;
  const std::shared_ptr<CallQueue> queue_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // guarded by mutex_
};

// Messages of a group progress while a thread waits for one of them. A rank that waits for a collective instead would
// leave its peers waiting for the rest of a long message: while a group is in a collective, a thread of its queue waits
// for the messages of all groups that are under way.
class MessagePump : public std::enable_shared_from_this<MessagePump> {
 public:
  explicit MessagePump(std::shared_ptr<CallQueue> queue) : queue_(std::move(queue)) {}
  static void introduce(const std::shared_ptr<MessagePump>& pump);  // once, before its first collective

  void add(const c10::intrusive_ptr<MessageWork>& work);
  // Around each collective.
  void begin_collective();
  void end_collective() { in_collective_.store(false); }

 private:
  using Works = std::vector<c10::intrusive_ptr<MessageWork>>;
  struct Shared {
    const OwnProcess process;
    std::mutex mutex;
    Works messages;                                 // of all groups
    std::vector<std::weak_ptr<MessagePump>> pumps;  // of all groups
    std::atomic<std::size_t> count{0};              // of messages
  };
  static Shared& shared();
  static Works drop_done();

  void start_moving();
  void move_messages();

  const std::shared_ptr<CallQueue> queue_;
  std::atomic<bool> in_collective_{false}, is_moving_{false};
};

}  // namespace lockstep::torch_backend

// What stages of a pipeline send each other, within a process and between ranks.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/random.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::train {

// A micro-batch between two stages, on its way to the loss.
struct Activation {
  Tensor values;
  RandomState random;           // where the next stage's draws begin: those of one device that runs all layers
  bool wants_gradient = false;  // a stage before has something to train
};

// The two neighbours of a stage. Micro-batches pass in order. receive_*() blocks until the neighbour has sent.
class StageLinks {
 public:
  virtual ~StageLinks() = default;
  // Both return what they received on `device`.
  virtual Activation receive_activation(Device& device) = 0;
  virtual Tensor receive_gradient(Device& device) = 0;
  // The tensor must not change any more.
  virtual void send_activation(const Activation& activation) = 0;
  virtual void send_gradient(const Tensor& gradient) = 0;
};

// Thrown by a link when another stage has failed: its exception counts, not this one.
struct StageStopped {};

// All stages of a process, a thread each: queues between neighbours.
class LocalPipeline {
 public:
  explicit LocalPipeline(int stages);
  ~LocalPipeline();
  StageLinks& links(int stage);
  void begin();  // of a step: nothing is queued
  void fail(std::exception_ptr
                exception);  // all receive_*() throw StageStopped from now on; of several exceptions the first counts
  void rethrow();            // that one, if there is one
  std::uint64_t sent(int from, int to) const;  // bytes, since the pipeline was made

 private:
  class Links;
  struct Boundary {  // behind a stage
    std::deque<Activation> activations;
    std::deque<Tensor> gradients;
    std::uint64_t bytes_on = 0, bytes_back = 0;
  };
  template <typename T>
  T take(std::deque<T>& queue);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Boundary> boundaries_;
  std::exception_ptr failure_;
  std::vector<std::unique_ptr<Links>> links_;
};

// A stage a rank: messages to the ranks before and behind, by way of the CPU's memory. One thread.
class RankLinks : public StageLinks {
 public:
  explicit RankLinks(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}
  Activation receive_activation(Device& device) override;
  Tensor receive_gradient(Device& device) override;
  void send_activation(const Activation& activation) override;
  void send_gradient(const Tensor& gradient) override;
  void finish_sends();  // at the end of a step
  std::uint64_t sent() const { return sent_; }
  std::uint64_t received() const { return received_; }

 private:
  void send(const Activation& message, int to, int tag);
  Activation receive(int from, int tag, Device& device);

  std::shared_ptr<ProcessGroup> group_;
  struct Pending {
    std::vector<std::int64_t> header;
    Tensor values;
    Work header_sent, values_sent;
  };
  std::deque<Pending> pending_;  // their memory is the group's until they are sent
  std::uint64_t sent_ = 0, received_ = 0;
};

}  // namespace lockstep::train

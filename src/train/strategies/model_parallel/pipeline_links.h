// Messages between the stages of a pipeline, within a process and between ranks.
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
  RandomState random;           // where the next stage's draws begin, as on one device that runs all layers
  bool wants_gradient = false;  // whether an earlier stage has something to train
};

// The two neighbours of a stage. Micro-batches pass in order. receive_*() blocks until the neighbour has sent.
class StageLinks {
 public:
  virtual ~StageLinks() = default;
  // The result is on `device`.
  virtual Activation receive_activation(Device& device) = 0;
  virtual Tensor receive_gradient(Device& device) = 0;
  // The tensor must not change any more.
  virtual void send_activation(const Activation& activation) = 0;
  virtual void send_gradient(const Tensor& gradient) = 0;
};

// A link throws this when another stage has failed; the other stage's exception is the one to report.
struct StageStopped {};

// The queues between the stages of one process, which has a thread for each stage.
class LocalPipeline {
 public:
  explicit LocalPipeline(int stages);
  ~LocalPipeline();
  StageLinks& links(int stage);
  void begin();  // begins a step with empty queues
  // All receive_*() throw StageStopped from now on. Keeps the first exception.
  void fail(std::exception_ptr exception);
  void rethrow();                              // throws the exception of fail(), if there is one
  std::uint64_t sent(int from, int to) const;  // bytes, since the pipeline was made

 private:
  class Links;
  struct Boundary {  // after a stage
    std::deque<Activation> activations;
    std::deque<Tensor> gradients;
    std::uint64_t bytes_on = 0, bytes_back = 0;
  };
  template <typename T> T take(std::deque<T>& queue);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Boundary> boundaries_;
  std::exception_ptr failure_;
  std::vector<std::unique_ptr<Links>> links_;
};

// The links of a rank's stage: messages to the previous and next rank, through the CPU's memory. Used by one thread.
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
  std::deque<Pending> pending_;  // the group reads their memory until they are sent
  std::uint64_t sent_ = 0, received_ = 0;
};

}  // namespace lockstep::train

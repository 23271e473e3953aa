// The losses of a stage's micro-batches: the stage's own loss if it is the last one, and what its modules added.
#pragma once

#include <vector>

#include "src/train/strategies/model_copies.h"

namespace lockstep::train {

// The sums stay on the device: reading each loss would end the overlap of host and device once a micro-batch.
class MicroBatchLosses {
 public:
  void begin(int micro_batches);
  // `loss` is undefined except on the last stage. Throws InvalidArgument if modules added another number of losses than
  // for the micro-batch before.
  void count(const Tensor& loss, const nn::AddedLosses& added);
  void end();  // waits for the device

  // Means over the micro-batches.
  float loss() const { return loss_; }
  float added() const { return added_; }
  std::vector<NamedLoss> by_name() const { return means_.values(); }

 private:
  std::vector<NamedTensor> sums_;  // "loss" if there is one, then the added losses
  StepLosses means_;
  bool has_loss_ = false;
  float part_ = 1, loss_ = 0, added_ = 0;
};

}  // namespace lockstep::train

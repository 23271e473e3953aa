// Dynamic loss scaling, for float16: gradients of activations that would vanish below its smallest number are computed larger, and the
// optimizer divides again (Micikevicius et al., "Mixed precision training", ICLR 2018; the rule and numbers of PyTorch's GradScaler).
//
//   optim::LossScaler scaler;
//   optim::SGD sgd(ddp.parameters(), {.lr = 0.1f, .loss_scaler = &scaler});
//   scaler.scale(loss).backward();
//   sgd.step();  // skipped when a gradient is infinite or no number; the scale follows
//
// The scale and the decision live on the device: the host waits for neither. Averaged gradients are the same on all ranks, so all ranks
// decide alike. Gradients that hooks and grad() see in between are scaled. bfloat16 has float32's range and needs none of this.
#pragma once

#include <cstdint>

#include "lockstep/core/update_params.h"
#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep::optim {

struct LossScalerOptions {
  float initial = 65536;
  float growth = 2;                     // after growth_interval good steps in a row
  float backoff = 0.5f;                 // after a step that was skipped
  std::int64_t growth_interval = 2000;  // at most 2^24
};

// Of one optimizer, which keeps its state in checkpoints, as "loss_scaler.state".
class LossScaler {
 public:
  explicit LossScaler(const LossScalerOptions& options = {});  // InvalidArgument: a factor that makes no sense

  Tensor scale(const Tensor& loss);  // loss times the scale, differentiable

  // Both wait for the device: for logs.
  float value() const;
  std::int64_t skipped_steps() const;

  // For the optimizer: the state on `device`, where it moves to; float32, see LossScaleState.
  const Tensor& state_on(Device& device);
  LossScaleState* data_on(Device& device);
  const LossScaleRule& rule() const { return rule_; }

 private:
  LossScaleRule rule_;
  Tensor state_;
};

}  // namespace lockstep::optim
#pragma GCC visibility pop

// Clipped gradients, between backward() and step(). Averaged gradients are the same on all ranks, and so is what is
// clipped: no rank asks another one.
//
//   loss.backward();
//   optim::clip_grad_norm(ddp.parameters(), 1.0f);
//   sgd.step();
#pragma once

#include <vector>

#include "lockstep/optim/loss_scaler.h"
#include "lockstep/tensor/named_tensor.h"

#pragma GCC visibility push(default)
namespace lockstep::optim {

struct ClipOptions {
  // Not null: gradients are its multiples; the limit holds for what they are without it, and the norm is theirs.
  LossScaler* loss_scaler = nullptr;
  // Of clip_grad_norm: throws Error, and changes nothing, when a gradient is infinite or no number. Waits for the
  // device. Not together with loss scaling, which skips such a step.
  bool error_if_nonfinite = false;
};

// Scales all gradients by min(1, max_norm / (norm + 1e-6)), where norm is the root of the sum of all their squares
// (Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks", ICML 2013, section 3.2;
// PyTorch's clip_grad_norm_). Parameters without a gradient do not count, one under two names (tied weights) counts
// once. Returns the norm before, a float32 scalar on the gradients' device: on a GPU nothing waits for it but its
// reader. The sum runs in double, in an order that depends on the shapes alone. A norm that is no number makes all
// gradients such. InvalidArgument: max_norm is not above 0, no parameters, parameters on two devices.
Tensor clip_grad_norm(const std::vector<NamedTensor>& parameters, float max_norm, const ClipOptions& options = {});

// Each element of each gradient to [-limit, limit]; NaN stays. InvalidArgument as above.
void clip_grad_value(const std::vector<NamedTensor>& parameters, float limit, const ClipOptions& options = {});

}  // namespace lockstep::optim
#pragma GCC visibility pop

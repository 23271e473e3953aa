// Gradient clipping, between backward() and step(). Averaged gradients are the same on all ranks, and so are the
// clipped ones, without communication.
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
  // If not null, gradients are multiples of its scale; the limit and the norm refer to the unscaled gradients.
  LossScaler* loss_scaler = nullptr;
  // For clip_grad_norm: throw Error, and change nothing, if a gradient is infinite or NaN. Blocks until the device is
  // done. Not with loss scaling, which skips such a step.
  bool error_if_nonfinite = false;
};

// Scales all gradients by min(1, max_norm / (norm + 1e-6)), where norm is the root of the sum of all their squares
// (Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks", ICML 2013, section 3.2;
// PyTorch's clip_grad_norm_). Parameters without a gradient do not count; one with two names (tied weights) counts
// once. Returns the norm before scaling, a float32 scalar on the gradients' device; on a GPU only reading it blocks.
// The sum is in double, in an order that depends only on the shapes. A NaN norm makes all gradients NaN. Throws
// InvalidArgument if max_norm is not above 0, without parameters, and for parameters on two devices.
Tensor clip_grad_norm(const std::vector<NamedTensor>& parameters, float max_norm, const ClipOptions& options = {});

// Clamps each element of each gradient to [-limit, limit]; NaN stays NaN. Throws InvalidArgument as above.
void clip_grad_value(const std::vector<NamedTensor>& parameters, float limit, const ClipOptions& options = {});

}  // namespace lockstep::optim
#pragma GCC visibility pop

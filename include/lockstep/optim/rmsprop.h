// RMSprop (Tieleman and Hinton, "Neural Networks for Machine Learning", lecture 6.5, 2012; centered: Graves,
// "Generating Sequences With Recurrent Neural Networks", 2013, section 4.2), in PyTorch's form, with eps outside the
// root:
//
//   g = grad + weight_decay * w
//   v = alpha * v + (1 - alpha) * g^2;  centered:  a = alpha * a + (1 - alpha) * g, and v - a^2 replaces v below
//   b = momentum * b + g / (sqrt(v) + eps);  w -= lr * b
//
// After 100 steps, weights differ from PyTorch's in float64 by a relative error of at most 5e-6 (tests/optim).
#pragma once

#include "lockstep/optim/optimizer.h"

#pragma GCC visibility push(default)
namespace lockstep::optim {

struct RMSpropOptions {
  float lr = 1e-2f;
  double alpha = 0.99;
  float eps = 1e-8f;
  float momentum = 0;
  bool centered = false;
  float weight_decay = 0;
  LossScaler* loss_scaler = nullptr;  // for float16; must outlive the optimizer
};

// State: "<parameter>.square_avg" (v); with momentum "<parameter>.momentum_buffer" (b); centered "<parameter>.grad_avg"
// (a).
class RMSprop : public Optimizer {
 public:
  explicit RMSprop(std::vector<NamedTensor> parameters, const RMSpropOptions& options = {});

 private:
  void update(std::span<const UpdateTensor> tensors, const GroupStep& group, const KernelTable& kernels,
              Stream& stream) override;

  RMSpropOptions options_;
};

}  // namespace lockstep::optim
#pragma GCC visibility pop

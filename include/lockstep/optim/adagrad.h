// Adagrad (Duchi, Hazan and Singer, "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization",
// JMLR 12, 2011), in PyTorch's form:
//
//   g = grad + weight_decay * w;  s = s + g^2
//   w -= lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps)      in step t = 1, 2, ...
//
// After 100 steps, weights differ from PyTorch's in float64 by a relative error of at most 5e-6 (tests/optim).
#pragma once

#include "lockstep/optim/optimizer.h"

#pragma GCC visibility push(default)
namespace lockstep::optim {

struct AdagradOptions {
  float lr = 1e-2f;
  float lr_decay = 0;
  float initial_accumulator = 0;  // s before the first step
  float eps = 1e-10f;
  float weight_decay = 0;
  LossScaler* loss_scaler = nullptr;  // for float16; must outlive the optimizer
};

// State: "<parameter>.sum" (s), "group<i>.clock".
class Adagrad : public Optimizer {
 public:
  explicit Adagrad(std::vector<NamedTensor> parameters, const AdagradOptions& options = {});

 private:
  void update(std::span<const UpdateTensor> tensors, const GroupStep& group, const KernelTable& kernels,
              Stream& stream) override;

  AdagradOptions options_;
};

}  // namespace lockstep::optim
#pragma GCC visibility pop

// Adam (Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, algorithm 1) and AdamW (Loshchilov and
// Hutter, "Decoupled Weight Decay Regularization", ICLR 2019, algorithm 2), in PyTorch's form:
//
//   Adam:  g = grad + weight_decay * w             AdamW:  g = grad;  w -= lr * weight_decay * w
//   m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
//   w -= lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + eps)           in step t = 1, 2, ...
//
// amsgrad (Reddi, Kale and Kumar, "On the Convergence of Adam and Beyond", ICLR 2018): the largest v so far replaces v
// in the last line.
//
// After 100 steps, weights differ from PyTorch's in float64 by a relative error of at most 5e-6 (tests/optim).
#pragma once

#include "lockstep/optim/optimizer.h"

#pragma GCC visibility push(default)
namespace lockstep::optim {

struct AdamOptions {
  float lr = 1e-3f;
  double beta1 = 0.9, beta2 = 0.999;
  float eps = 1e-8f;
  float weight_decay = 0;
  bool amsgrad = false;
  LossScaler* loss_scaler = nullptr;  // for float16; must outlive the optimizer
};

struct AdamWOptions {
  float lr = 1e-3f;
  double beta1 = 0.9, beta2 = 0.999;
  float eps = 1e-8f;
  float weight_decay = 1e-2f;
  bool amsgrad = false;
  LossScaler* loss_scaler = nullptr;
};

// State: "<parameter>.exp_avg" (m), "<parameter>.exp_avg_sq" (v), with amsgrad "<parameter>.max_exp_avg_sq", and
// "group<i>.clock".
class Adam : public Optimizer {
 public:
  explicit Adam(std::vector<NamedTensor> parameters, const AdamOptions& options = {});

 protected:
  Adam(const char* kind, std::vector<NamedTensor> parameters, const AdamOptions& options, bool decoupled);

 private:
  void update(std::span<const UpdateTensor> tensors, const GroupStep& group, const KernelTable& kernels,
              Stream& stream) override;

  AdamOptions options_;
  bool decoupled_;
};

// Has the same state as Adam.
class AdamW : public Adam {
 public:
  explicit AdamW(std::vector<NamedTensor> parameters, const AdamWOptions& options = {});
};

}  // namespace lockstep::optim
#pragma GCC visibility pop

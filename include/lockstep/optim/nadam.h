// Nadam: Adam with Nesterov momentum (Dozat, "Incorporating Nesterov Momentum into Adam", ICLR workshop 2016), in the
// form of PyTorch's NAdam, whose momentum follows a schedule:
//
//   g = grad + weight_decay * w          (decoupled:  g = grad;  w -= lr * weight_decay * w)
//   mu(t) = beta1 * (1 - 0.96^(t * momentum_decay) / 2);  P(t) = mu(1) * ... * mu(t)
//   m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
//   w -= lr * ((1 - mu(t)) / (1 - P(t)) * g + mu(t+1) / (1 - P(t+1)) * m) / (sqrt(v / (1 - beta2^t)) + eps)
//
// Keras' Nadam is the same with momentum_decay 1 and other defaults: NadamOptions::keras(). After 100 steps, weights
// differ from PyTorch's and Keras' in float64 by a relative error of at most 5e-6 (tests/optim).
#pragma once

#include "lockstep/optim/optimizer.h"

#pragma GCC visibility push(default)
namespace lockstep::optim {

struct NadamOptions {
  float lr = 2e-3f;
  double beta1 = 0.9, beta2 = 0.999;
  float eps = 1e-8f;
  float weight_decay = 0;
  double momentum_decay = 4e-3;
  bool decoupled_weight_decay = false;
  LossScaler* loss_scaler = nullptr;  // for float16; must outlive the optimizer

  // The defaults of Keras 3's tf.keras.optimizers.Nadam(learning_rate), whose weight decay is decoupled.
  static NadamOptions keras(float learning_rate = 1e-3f) {
    return {.lr = learning_rate, .eps = 1e-7f, .momentum_decay = 1, .decoupled_weight_decay = true};
  }
};

// State: "<parameter>.exp_avg" (m), "<parameter>.exp_avg_sq" (v), "group<i>.clock".
class Nadam : public Optimizer {
 public:
  explicit Nadam(std::vector<NamedTensor> parameters, const NadamOptions& options = {});

 private:
  void update(std::span<const UpdateTensor> tensors, const GroupStep& group, const KernelTable& kernels,
              Stream& stream) override;

  NadamOptions options_;
};

}  // namespace lockstep::optim
#pragma GCC visibility pop

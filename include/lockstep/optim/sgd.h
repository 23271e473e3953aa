// Stochastic gradient descent with momentum (classical or Nesterov) and weight decay, in PyTorch's form, without
// dampening and with the rate outside the velocity (Sutskever et al., "On the importance of initialization and momentum
// in deep learning", ICML 2013):
//
//   g = grad + weight_decay * w;  v = momentum * v + g;  w -= lr * (nesterov ? g + momentum * v : v)
//
// After 100 steps, weights differ from PyTorch's in float64 by a relative error of at most 5e-6 (tests/optim).
#pragma once

#include "lockstep/optim/optimizer.h"

#pragma GCC visibility push(default)
namespace lockstep::optim {

struct SGDOptions {
  float lr = 0.01f;
  float momentum = 0;
  bool nesterov = false;  // requires momentum
  float weight_decay = 0;
  LossScaler* loss_scaler = nullptr;  // for float16; must outlive the optimizer
};

// State: "<parameter>.momentum", if momentum is not 0.
class SGD : public Optimizer {
 public:
  explicit SGD(std::vector<NamedTensor> parameters, const SGDOptions& options = {});

 private:
  void update(std::span<const UpdateTensor> tensors, const GroupStep& group, const KernelTable& kernels,
              Stream& stream) override;

  SGDOptions options_;
};

}  // namespace lockstep::optim
#pragma GCC visibility pop

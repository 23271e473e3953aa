// Stochastic gradient descent with momentum (classical or Nesterov's) and weight decay; the formula is at SgdParams in
// core/kernels.h. One fused pass over all parameters.
#pragma once

#include "lockstep/core/kernels.h"
#include "lockstep/optim/loss_scaler.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

struct SGDOptions {
  float lr = 0.01f;
  float momentum = 0;
  bool nesterov = false;  // needs momentum
  float weight_decay = 0;
  LossScaler* loss_scaler = nullptr;  // for float16; must outlive the optimizer
};

class SGD : public Optimizer {
 public:
  SGD(std::vector<NamedTensor> parameters, const SGDOptions& options = {});
  void step() override;
  float lr() const override { return options_.lr; }
  void set_lr(float lr) override;
  std::vector<NamedTensor> state() override;
  std::string kind() const override { return "SGD"; }

 private:
  void follow_parameters();

  SGDOptions options_;
  Tensor lr_;                       // options_.lr where the kernel reads it: a recorded step follows set_lr()
  std::vector<Tensor> momenta_;     // zero at first; empty without momentum
  std::vector<SgdTensor> tensors_;  // what step() hands to the kernel, kept so that a step allocates nothing
};

}  // namespace lockstep::optim

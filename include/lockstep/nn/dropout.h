// Dropout while training.
#pragma once

#include "lockstep/nn/module.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

// dropout() of autograd/dropout.h in training mode; the identity in eval mode.
class Dropout : public Module {
 public:
  explicit Dropout(float p = 0.5F);
  Tensor forward(const Tensor& x) override { return dropout(x, p_, is_training()); }
  std::string kind() const override { return "Dropout"; }
  std::string extra_repr() const override;

 private:
  float p_;
};

}  // namespace lockstep::nn
#pragma GCC visibility pop

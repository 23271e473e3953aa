// Activations as modules. See autograd/elementwise.h for the formulas; ReLU is in layers.h.
#pragma once

#include <string>

#include "lockstep/nn/module.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

class GELU : public Module {
 public:
  explicit GELU(GeluApproximation approximation = GeluApproximation::kNone) : approximation_(approximation) {}
  Tensor forward(const Tensor& x) override { return gelu(x, approximation_); }
  std::string kind() const override { return "GELU"; }
  std::string extra_repr() const override {
    return approximation_ == GeluApproximation::kTanh ? "approximation=tanh" : "";
  }

 private:
  GeluApproximation approximation_;
};

class SiLU : public Module {
 public:
  Tensor forward(const Tensor& x) override { return silu(x); }
  std::string kind() const override { return "SiLU"; }
};

class Tanh : public Module {
 public:
  Tensor forward(const Tensor& x) override { return tanh(x); }
  std::string kind() const override { return "Tanh"; }
};

class Sigmoid : public Module {
 public:
  Tensor forward(const Tensor& x) override { return sigmoid(x); }
  std::string kind() const override { return "Sigmoid"; }
};

// Over the last dimension. For the loss of its result see cross_entropy(..., {.from_logits = false}).
class Softmax : public Module {
 public:
  Tensor forward(const Tensor& x) override { return softmax(x); }
  std::string kind() const override { return "Softmax"; }
};

class LogSoftmax : public Module {
 public:
  Tensor forward(const Tensor& x) override { return log_softmax(x); }
  std::string kind() const override { return "LogSoftmax"; }
};

class LeakyReLU : public Module {
 public:
  explicit LeakyReLU(float negative_slope = 0.01f) : negative_slope_(negative_slope) {}
  Tensor forward(const Tensor& x) override { return leaky_relu(x, negative_slope_); }
  std::string kind() const override { return "LeakyReLU"; }
  std::string extra_repr() const override;

 private:
  float negative_slope_;
};

}  // namespace lockstep::nn
#pragma GCC visibility pop

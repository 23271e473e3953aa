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

// For the loss of its result see cross_entropy(..., {.from_logits = false}).
class Softmax : public Module {
 public:
  explicit Softmax(int dim = -1) : dim_(dim) {}
  Tensor forward(const Tensor& x) override { return softmax(x, dim_); }
  std::string kind() const override { return "Softmax"; }
  std::string extra_repr() const override;

 private:
  int dim_;
};

class LogSoftmax : public Module {
 public:
  explicit LogSoftmax(int dim = -1) : dim_(dim) {}
  Tensor forward(const Tensor& x) override { return log_softmax(x, dim_); }
  std::string kind() const override { return "LogSoftmax"; }
  std::string extra_repr() const override;

 private:
  int dim_;
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

class ELU : public Module {
 public:
  explicit ELU(float alpha = 1) : alpha_(alpha) {}
  Tensor forward(const Tensor& x) override { return elu(x, alpha_); }
  std::string kind() const override { return "ELU"; }
  std::string extra_repr() const override;

 private:
  float alpha_;
};

class Softplus : public Module {
 public:
  explicit Softplus(float beta = 1, float threshold = 20) : beta_(beta), threshold_(threshold) {}
  Tensor forward(const Tensor& x) override { return softplus(x, beta_, threshold_); }
  std::string kind() const override { return "Softplus"; }
  std::string extra_repr() const override;

 private:
  float beta_, threshold_;
};

class Hardswish : public Module {
 public:
  Tensor forward(const Tensor& x) override { return hardswish(x); }
  std::string kind() const override { return "Hardswish"; }
};

class ReLU6 : public Module {
 public:
  Tensor forward(const Tensor& x) override { return relu6(x); }
  std::string kind() const override { return "ReLU6"; }
};

class Mish : public Module {
 public:
  Tensor forward(const Tensor& x) override { return mish(x); }
  std::string kind() const override { return "Mish"; }
};

// One weight, or one per channel; the channel is the last dimension of x. As in PyTorch, give it no weight decay.
class PReLU : public Module {
 public:
  explicit PReLU(std::int64_t channels = 1, float initial = 0.25f);
  Tensor forward(const Tensor& x) override { return prelu(x, weight); }
  std::string kind() const override { return "PReLU"; }
  std::string extra_repr() const override;
  Tensor weight;
};

class GLU : public Module {
 public:
  explicit GLU(int dim = -1) : dim_(dim) {}
  Tensor forward(const Tensor& x) override { return glu(x, dim_); }
  std::string kind() const override { return "GLU"; }
  std::string extra_repr() const override;

 private:
  int dim_;
};

// Returns its input, for a place that another model fills.
class Identity : public Module {
 public:
  Tensor forward(const Tensor& x) override { return x; }
  std::string kind() const override { return "Identity"; }
};

}  // namespace lockstep::nn
#pragma GCC visibility pop

// Layers that treat each channel of a sample by itself: InstanceNorm and Dropout2d.
#pragma once

#include "lockstep/autograd/dropout.h"
#include "lockstep/autograd/normalization.h"
#include "lockstep/nn/module.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

struct InstanceNormOptions {
  float eps = 1e-5F;
  bool affine = false;  // has a weight (initially 1) and a bias (initially 0)
};

// Instance norm (Ulyanov et al. 2016) of x (N, ..., channels): each channel of a sample by its own mean and variance,
// in training and in evaluation. PyTorch's defaults; there are no running statistics.
class InstanceNorm : public Module {
 public:
  explicit InstanceNorm(std::int64_t channels, const InstanceNormOptions& options = {});
  Tensor forward(const Tensor& x) override;
  std::string kind() const override { return "InstanceNorm"; }
  std::string extra_repr() const override;
  Tensor weight, bias;  // (channels), or undefined

 private:
  std::int64_t channels_;
  float eps_;
};
using InstanceNorm1d = InstanceNorm;
using InstanceNorm2d = InstanceNorm;

// dropout_channels() of autograd/dropout.h in training mode; the identity in eval mode.
class Dropout2d : public Module {
 public:
  explicit Dropout2d(float p = 0.5F);
  Tensor forward(const Tensor& x) override { return dropout_channels(x, p_, is_training()); }
  std::string kind() const override { return "Dropout2d"; }
  std::string extra_repr() const override;

 private:
  float p_;
};

}  // namespace lockstep::nn
#pragma GCC visibility pop

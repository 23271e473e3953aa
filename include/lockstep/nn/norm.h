// Normalisation of each sample; see autograd/normalization.h for the formulas. Weights are initially 1 and biases 0, as
// in PyTorch.
#pragma once

#include "lockstep/nn/module.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

struct LayerNormOptions {
  float eps = 1e-5F;
  bool weight = true, bias = true;  // false: without
};

// Normalises over the last dimensions, whose extents are `over`; a single extent: over the last dimension.
class LayerNorm : public Module {
 public:
  explicit LayerNorm(const Shape& over, const LayerNormOptions& options = {});
  explicit LayerNorm(std::int64_t width, const LayerNormOptions& options = {}) : LayerNorm(Shape{width}, options) {}
  Tensor forward(const Tensor& x) override { return layer_norm(x, over_, weight, bias, eps_); }
  // {a + b, forward(a + b)} in one pass, see add_layer_norm(). No call of the module: hooks and summary() do not see
  // it.
  std::pair<Tensor, Tensor> of_sum(const Tensor& a, const Tensor& b) const {
    return add_layer_norm(a, b, over_, weight, bias, eps_);
  }
  std::string kind() const override { return "LayerNorm"; }
  std::string extra_repr() const override;
  Tensor weight, bias;  // of the shape `over`

 private:
  Shape over_;
  float eps_;
};

class RMSNorm : public Module {
 public:
  explicit RMSNorm(const Shape& over, float eps = 1e-6F);
  explicit RMSNorm(std::int64_t width, float eps = 1e-6F) : RMSNorm(Shape{width}, eps) {}
  Tensor forward(const Tensor& x) override { return rms_norm(x, over_, weight, eps_); }
  std::string kind() const override { return "RMSNorm"; }
  std::string extra_repr() const override;
  Tensor weight;

 private:
  Shape over_;
  float eps_;
};

struct GroupNormOptions {
  float eps = 1e-5F;
  bool affine = true;  // false: neither weight nor bias
};

// x (N, ..., channels) in groups of neighbouring channels.
class GroupNorm : public Module {
 public:
  GroupNorm(std::int64_t groups, std::int64_t channels, const GroupNormOptions& options = {});
  Tensor forward(const Tensor& x) override { return group_norm(x, groups_, weight, bias, eps_); }
  std::string kind() const override { return "GroupNorm"; }
  std::string extra_repr() const override;
  Tensor weight, bias;  // (channels)

 private:
  std::int64_t groups_, channels_;
  float eps_;
};

}  // namespace lockstep::nn
#pragma GCC visibility pop

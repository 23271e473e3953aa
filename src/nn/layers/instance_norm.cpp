#include "lockstep/nn/instance_norm.h"

#include <fmt/format.h>

#include "lockstep/autograd/extend.h"
#include "src/nn/layers/layer_parts.h"

namespace lockstep::nn {

InstanceNorm::InstanceNorm(std::int64_t channels, const InstanceNormOptions& options)
    : channels_(channels), eps_(options.eps) {
  check_sizes("InstanceNorm", {channels});
  if (!options.affine) return;
  weight = Tensor::full({channels}, 1);
  add_parameter("weight", weight);
  bias = Tensor::zeros({channels});
  add_parameter("bias", bias);
}

Tensor InstanceNorm::forward(const Tensor& x) {
  check_activation("InstanceNorm", "x (N, ..., C)", x);
  if (x.shape().dims() < 2 || x.shape()[x.shape().dims() - 1] != channels_)
    throw InvalidArgument("InstanceNorm: x (N, ..., {}) expected, got {}", channels_, x.shape().text());
  return group_norm(x, channels_, weight, bias, eps_);
}

std::string InstanceNorm::extra_repr() const {
  return fmt::format("{}, eps={}{}", channels_, eps_, weight.defined() ? ", affine" : "");
}

Dropout2d::Dropout2d(float p) : p_(p) {
  if (!(p >= 0 && p < 1)) throw InvalidArgument("Dropout2d: p must be in [0, 1), got {}", p);
}

std::string Dropout2d::extra_repr() const { return fmt::format("p={}", p_); }

}  // namespace lockstep::nn

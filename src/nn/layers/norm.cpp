#include "lockstep/nn/norm.h"

#include <fmt/format.h>

#include "src/nn/layers/layer_parts.h"

namespace lockstep::nn {

namespace {

void check_extents(const char* layer, const Shape& over) {
  if (over.dims() == 0 || over.count() == 0)
    throw InvalidArgument("{}: extents must be positive, got {}", layer, over.text());
}

}  // namespace

LayerNorm::LayerNorm(const Shape& over, const LayerNormOptions& options) : over_(over), eps_(options.eps) {
  check_extents("LayerNorm", over);
  if (options.weight) {
    weight = Tensor::full(over, 1);
    add_parameter("weight", weight);
  }
  if (options.bias) {
    bias = Tensor::zeros(over);
    add_parameter("bias", bias);
  }
}

std::string LayerNorm::extra_repr() const {
  return fmt::format("{}, eps={}{}{}", over_.text(), eps_, weight.defined() ? "" : ", weight=false",
                     bias.defined() ? "" : ", bias=false");
}

RMSNorm::RMSNorm(const Shape& over, float eps) : weight(Tensor::full(over, 1)), over_(over), eps_(eps) {
  check_extents("RMSNorm", over);
  add_parameter("weight", weight);
}

std::string RMSNorm::extra_repr() const { return fmt::format("{}, eps={}", over_.text(), eps_); }

GroupNorm::GroupNorm(std::int64_t groups, std::int64_t channels, const GroupNormOptions& options)
    : groups_(groups), channels_(channels), eps_(options.eps) {
  check_sizes("GroupNorm", {groups, channels});
  if (channels % groups != 0) throw InvalidArgument("GroupNorm: {} groups do not divide {} channels", groups, channels);
  if (!options.affine) return;
  weight = Tensor::full({channels}, 1);
  add_parameter("weight", weight);
  bias = Tensor::zeros({channels});
  add_parameter("bias", bias);
}

std::string GroupNorm::extra_repr() const {
  return fmt::format("{}, {}, eps={}{}", groups_, channels_, eps_, weight.defined() ? "" : ", affine=false");
}

}  // namespace lockstep::nn

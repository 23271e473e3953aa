#include "lockstep/nn/layers.h"

#include <cmath>

#include "lockstep/core/error.h"
#include "lockstep/tensor/random.h"

namespace lockstep::nn {

namespace {

// Uniform in +-1/sqrt(fan in): what kaiming_uniform with a = sqrt(5) comes to (He et al. 2015).
Tensor drawn(const Shape& shape, std::int64_t fan_in) {
  const Tensor tensor = Tensor::empty(shape);
  const float bound = 1 / std::sqrt(static_cast<float>(fan_in));
  fill_uniform(tensor, -bound, bound);
  return tensor;
}

void check_positive(const char* layer, std::initializer_list<std::int64_t> sizes) {
  for (const std::int64_t size : sizes)
    if (size < 1) throw InvalidArgument("{}: every size must be positive, got {}", layer, size);
}

}  // namespace

Conv2d::Conv2d(std::int64_t in_channels, std::int64_t out_channels, Size2 kernel, const Conv2dLayerOptions& options)
    : options_{options.stride, options.padding, options.activation} {
  check_positive("Conv2d", {in_channels, out_channels, kernel[0], kernel[1]});
  const std::int64_t fan_in = in_channels * kernel[0] * kernel[1];
  weight = drawn({out_channels, kernel[0], kernel[1], in_channels}, fan_in);
  add_parameter("weight", weight);
  if (options.bias) {
    bias = drawn({out_channels}, fan_in);
    add_parameter("bias", bias);
  }
}

Tensor Conv2d::forward(const Tensor& x) { return conv2d(x, weight, bias, options_); }

Linear::Linear(std::int64_t in_features, std::int64_t out_features, const LinearLayerOptions& options) : activation_(options.activation) {
  check_positive("Linear", {in_features, out_features});
  weight = drawn({out_features, in_features}, in_features);
  add_parameter("weight", weight);
  if (options.bias) {
    bias = drawn({out_features}, in_features);
    add_parameter("bias", bias);
  }
}

Tensor Linear::forward(const Tensor& x) { return linear(x, weight, bias, activation_); }

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (const auto& module : modules_) y = (*module)(y);
  return y;
}

}  // namespace lockstep::nn

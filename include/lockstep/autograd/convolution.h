// Convolutions (cross-correlations, as everywhere in this field).
#pragma once

#include "lockstep/autograd/activation.h"
#include "lockstep/autograd/padding.h"
#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

struct Conv2dOptions {
  Size2 stride = {1, 1};
  PaddingRule padding = Padding{};
  Activation activation = Activation::kNone;  // fused into the convolution
  // Both C and O are cut into so many equal ranges: the filters of a range see the channels of that range alone. C
  // groups of one channel are a depthwise convolution. PyTorch's order.
  std::int64_t groups = 1;
};
// x (N, H, W, C), weight (O, KH, KW, C / groups), bias (O) or undefined. Gives (N, H', W', O), H' = (H + padding - KH)
// / stride + 1. Throws InvalidArgument that names what does not match.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dOptions& options = {});

struct Conv1dOptions {
  std::int64_t stride = 1;
  PaddingRule1d padding = Padding1d{};
  Activation activation = Activation::kNone;
  std::int64_t groups = 1;
};
// The same along one dimension: x (N, L, C), weight (O, K, C / groups), bias (O) or undefined. Gives (N, L', O).
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv1dOptions& options = {});

}  // namespace lockstep
#pragma GCC visibility pop

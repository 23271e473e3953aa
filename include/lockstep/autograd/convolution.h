// Convolutions; in mathematical terms cross-correlations, as in all deep learning libraries.
#pragma once

#include "lockstep/autograd/activation.h"
#include "lockstep/autograd/padding.h"
#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

struct Conv2dOptions {
  Size2 stride = {1, 1};
  PaddingRule padding = Padding{};
  Activation activation = Activation::kNone;  // of the result; kReLU is fused into the convolution
  // Input and output channels are divided into this many equal ranges; the filters of a range read only the input
  // channels of that range. C groups of one channel make a depthwise convolution. The order of channels is PyTorch's.
  std::int64_t groups = 1;
  Size2 dilation = {1, 1};  // pixels from one tap of a filter to the next
};
// x (N, H, W, C), weight (O, KH, KW, C / groups), bias (O) or undefined. Returns (N, H', W', O), H' = (H + padding -
// reach) / stride + 1, where a filter reaches over (KH - 1) * dilation + 1 rows. Throws InvalidArgument that names the
// mismatch.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dOptions& options = {});

struct Conv1dOptions {
  std::int64_t stride = 1;
  PaddingRule1d padding = Padding1d{};
  Activation activation = Activation::kNone;
  std::int64_t groups = 1;
  std::int64_t dilation = 1;
};
// The same in one dimension: x (N, L, C), weight (O, K, C / groups), bias (O) or undefined. Returns (N, L', O).
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv1dOptions& options = {});

}  // namespace lockstep
#pragma GCC visibility pop

// Transposed convolutions: what the gradient of a convolution computes, as a layer that enlarges images.
#pragma once

#include "lockstep/autograd/padding.h"
#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

struct ConvTranspose2dOptions {
  Size2 stride = {1, 1};  // pixels of the result from one input to the next
  Padding padding = {};   // rows and columns that are cut off the result
  // Rows and columns more at the bottom and at the right, fewer than the stride: which of the sizes that a convolution
  // with this stride maps to x's the result has.
  Size2 output_padding = {0, 0};
  std::int64_t groups = 1;
  Size2 dilation = {1, 1};
};
// x (N, H, W, C), weight (C, KH, KW, O / groups), bias (O) or undefined. Returns (N, H', W', O), H' = (H - 1) * stride
// + (KH - 1) * dilation + 1 - padding + output_padding, where `padding` is the sum of both sides. PyTorch's weights are
// (C, O / groups, KH, KW); load_state_dict() and load_pretrained() permute them like those of convolutions. Throws
// InvalidArgument that names the mismatch.
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTranspose2dOptions& options = {});

struct ConvTranspose1dOptions {
  std::int64_t stride = 1;
  Padding1d padding = {};
  std::int64_t output_padding = 0;
  std::int64_t groups = 1;
  std::int64_t dilation = 1;
};
// The same in one dimension: x (N, L, C), weight (C, K, O / groups). Returns (N, L', O).
Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTranspose1dOptions& options = {});

}  // namespace lockstep
#pragma GCC visibility pop

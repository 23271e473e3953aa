// Pooling of images (N, H, W, C) to (N, H', W', C), H' = (H + padding - window) / stride + 1, and of sequences (N, L,
// C) likewise. Each function throws InvalidArgument that names the operator, the expected and the actual value. Padding
// must be smaller than the window.
#pragma once

#include "lockstep/autograd/padding.h"
#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

struct MaxPool2dOptions {
  Size2 stride = {0, 0};  // 0: same as the window
  PaddingRule padding = Padding{};
};
// The largest element of each window. Padding counts as -infinity; NaN is larger than any number.
Tensor max_pool2d(const Tensor& x, Size2 window, const MaxPool2dOptions& options = {});

struct AvgPool2dOptions {
  Size2 stride = {0, 0};  // 0: same as the window
  PaddingRule padding = Padding{};
  // True, as in PyTorch: divide by the window's size; false, as in TensorFlow: by its pixels inside the image.
  bool count_include_pad = true;
};
// The mean of each window. Padding counts as 0.
Tensor avg_pool2d(const Tensor& x, Size2 window, const AvgPool2dOptions& options = {});
// The mean over height and width: (N, H, W, C) to (N, C).
Tensor global_avg_pool2d(const Tensor& x);

struct MaxPool1dOptions {
  std::int64_t stride = 0;
  PaddingRule1d padding = Padding1d{};
};
Tensor max_pool1d(const Tensor& x, std::int64_t window, const MaxPool1dOptions& options = {});

struct AvgPool1dOptions {
  std::int64_t stride = 0;
  PaddingRule1d padding = Padding1d{};
  bool count_include_pad = true;
};
Tensor avg_pool1d(const Tensor& x, std::int64_t window, const AvgPool1dOptions& options = {});

}  // namespace lockstep
#pragma GCC visibility pop

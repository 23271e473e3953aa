// Images of another size: upsampling, and pooling to a size.
#pragma once

#include "lockstep/autograd/padding.h"
#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// Height and width; a single number is used for both.
struct Scale2 {
  double height = 0, width = 0;

  constexpr Scale2() = default;
  constexpr Scale2(double both) : height(both), width(both) {}
  constexpr Scale2(double of_rows, double of_columns) : height(of_rows), width(of_columns) {}
};

enum class UpsampleMode { kNearest, kBilinear };

// Either `size` or `scale` is given.
struct UpsampleOptions {
  Size2 size = {0, 0};  // of the result
  Scale2 scale = {};    // the result has floor(H * scale) x floor(W * scale) pixels
  UpsampleMode mode = UpsampleMode::kNearest;
  // For kBilinear: pixels are points, and the corners of both images coincide; otherwise pixels are squares, and the
  // images' edges coincide.
  bool align_corners = false;
};
// x (N, H, W, C) to (N, H', W', C), also smaller ones, as torch.nn.functional.interpolate. Throws InvalidArgument that
// names the option.
Tensor upsample(const Tensor& x, const UpsampleOptions& options);

// Pooling of x (N, H, W, C) to (N, size, C): row i of the result combines the rows from floor(i H / H') to
// ceil((i + 1) H / H'), and likewise the columns, as in PyTorch. Throws InvalidArgument for an empty image or result.
Tensor adaptive_avg_pool2d(const Tensor& x, Size2 size);
Tensor adaptive_max_pool2d(const Tensor& x, Size2 size);
// The same for sequences, (N, L, C) to (N, size, C).
Tensor adaptive_avg_pool1d(const Tensor& x, std::int64_t size);
Tensor adaptive_max_pool1d(const Tensor& x, std::int64_t size);

}  // namespace lockstep
#pragma GCC visibility pop

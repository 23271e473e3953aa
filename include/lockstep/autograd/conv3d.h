// Convolutions of volumes: videos, scans.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/autograd/activation.h"
#include "lockstep/autograd/padding.h"
#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// Depth, height and width. A single number is used for all three.
struct Size3 {
  std::int64_t depth = 0, height = 0, width = 0;

  constexpr Size3() = default;
  constexpr Size3(std::int64_t each) : Size3(each, each, each) {}
  constexpr Size3(std::int64_t of_planes, std::int64_t of_rows, std::int64_t of_columns)
      : depth(of_planes), height(of_rows), width(of_columns) {}
  constexpr Size2 image() const { return {height, width}; }
  friend constexpr bool operator==(const Size3&, const Size3&) = default;
};

struct Conv3dOptions {
  Size3 stride = 1;
  Size3 padding = 0;  // zeros on both sides of each axis, as PyTorch's `padding`
  Activation activation = Activation::kNone;
  std::int64_t groups = 1;  // as in Conv2dOptions
  Size3 dilation = 1;
};
// x (N, D, H, W, C), weight (O, KD, KH, KW, C / groups), bias (O) or undefined. Returns (N, D', H', W', O), D' = (D + 2
// * padding - reach) / stride + 1, where a filter reaches over (KD - 1) * dilation + 1 planes; likewise H' and W'.
// Computed as one two-dimensional convolution of N * D' images, each of which has the channels of the KD planes that a
// filter reads, so x is copied KD times. Throws InvalidArgument that names the mismatch.
Tensor conv3d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv3dOptions& options = {});

}  // namespace lockstep
#pragma GCC visibility pop

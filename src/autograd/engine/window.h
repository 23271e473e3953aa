// The geometry of sliding windows: a pure function from sizes and a padding rule to output sizes and explicit zeros.
#pragma once

#include <cstdint>

#include "lockstep/autograd/ops.h"

namespace lockstep {

struct WindowGeometry {
  std::int64_t out_height, out_width;
  Padding padding;
};

// Throws InvalidArgument that names `operation` if a size or stride is not positive, a padding is negative, or the
// output would be empty.
WindowGeometry place_window(const char* operation, Size2 in, Size2 window, Size2 stride, const PaddingRule& rule);

// A sequence (N, L, C) as images (N, 1, L, C), and back: the same memory, differentiably.
Tensor with_height(const Tensor& x);
Tensor without_height(const Tensor& y);
PaddingRule with_height(const PaddingRule1d& rule);

}  // namespace lockstep

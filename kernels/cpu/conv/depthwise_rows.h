// Common parts of both directions of depthwise convolutions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/simd/vector.h"
#include "kernels/windows.h"
#include "lockstep/core/kernels.h"

namespace lockstep::depthwise {

using Index = std::int64_t;

inline Index taps_of(const Conv2dShape& s) { return s.kernel_height * s.kernel_width; }

// The rows of the window of output row `i` that are inside the image.
inline Taps rows_of(const Conv2dShape& s, Index i) {
  return taps_inside(i, s.stride_height, s.pad_top, s.kernel_height, s.in_height);
}

constexpr Index kWindow = 3;  // rows and columns

// The rows of the input under one row of outputs: `x` is the first of them inside the image, under row `first` of the
// window.
struct RowsUnder {
  const float* x;
  Index first, row_step;
  Index in_width, out_width, stride, pad, channels;

  Index column(Index output) const { return output * stride - pad; }
  bool has_all_taps(Index column) const { return column >= 0 && column + kWindow <= in_width; }
  bool has(Index column) const { return column >= 0 && column < in_width; }
  // Selects one cache line after the other of a row, while channels `c` of `output` are computed.
  Index in_turn(Index output, Index c) const { return c * out_width + output * 16; }
  // Prefetches from the first row below these, which the next outputs read.
  void fetch_below(Index rows, Index turn) const { __builtin_prefetch(x + rows * row_step + turn); }
};

// The rows of the image x under row `i` of the outputs.
inline RowsUnder rows_under(const Conv2dShape& s, const float* x, const Taps& rows) {
  const Index row_step = s.in_width * s.in_channels;
  return {x + rows.input * row_step,
          rows.first,
          row_step,
          s.in_width,
          s.out_width,
          s.stride_width,
          s.pad_left,
          s.in_channels};
}

inline bool has_rows(const Conv2dShape& s) { return s.kernel_height == kWindow && s.kernel_width == kWindow; }

}  // namespace lockstep::depthwise

#define LOCKSTEP_LOOPS "kernels/cpu/conv/depthwise_rows.inc"
#include "kernels/cpu/simd/for_each_isa.h"

// Common parts of both directions of depthwise convolutions.
#pragma once

#include <cstring>

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/windows.h"
#include "lockstep/core/cpu_dispatch.h"
#include "lockstep/core/kernels.h"
#if defined(__x86_64__)
#include "kernels/cpu/depthwise_avx512.h"
#endif

namespace lockstep::depthwise {

using Index = std::int64_t;

// The vector type that compilers keep in registers for AVX2 and AVX-512 alike: with shorter registers, vectors of 16
// floats are split through memory.
using EightFloats = float __attribute__((vector_size(32)));
inline constexpr Index kVectors = 2, kVector = 8, kChannelsAtOnce = kVectors * kVector, kTapsAtOnce = 3,
                       kPixelsAtOnce = 4;

LOCKSTEP_ALWAYS_INLINE void load(const float* from, EightFloats& to) { std::memcpy(&to, from, sizeof to); }

inline Index taps_of(const Conv2dShape& s) { return s.kernel_height * s.kernel_width; }

// The rows of the window of output row `i` that are inside the image.
inline Taps rows_of(const Conv2dShape& s, Index i) {
  return taps_inside(i, s.stride_height, s.pad_top, s.kernel_height, s.in_height);
}

#if defined(__x86_64__)
inline bool has_avx512_form(const Conv2dShape& s) {
  return cpu_isa() >= Isa::kAvx512 && s.kernel_height == kWindow && s.kernel_width == kWindow &&
         s.in_channels >= kLanes;
}

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
#endif

}  // namespace lockstep::depthwise

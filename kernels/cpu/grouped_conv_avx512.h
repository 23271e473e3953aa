// The arithmetic of grouped_conv.cpp, on vectors of 16 channels, which are those of 16 / `group` groups. For each
// channel j of a group, a permutation broadcasts it to all lanes of its group, and is multiplied by one vector of the
// lanes' filters for each tap.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/product_avx512.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::grouped_conv {

using Index = std::int64_t;
using avx512::kLanes;

constexpr Index kTaps = 3;  // taps in a row of the kernel
constexpr int kMostOutputs = 14;

// For each lane, the first lane of its group; `group` is a power of two.
LOCKSTEP_INLINE_AVX512 __m512i first_lanes(int group) {
  return _mm512_and_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                          _mm512_set1_epi32(-group));
}

LOCKSTEP_INLINE_AVX512 __m512 spread(const float* pixel, __m512i lanes) {
  return _mm512_maskz_permutexvar_ps(0xffff, lanes, _mm512_loadu_ps(pixel));
}

// The operations on an output before it is stored.
struct Finish {
  const float* bias;  // null: no bias
  bool relu, accumulate;
};

LOCKSTEP_INLINE_AVX512 void finish_output(__m512 value, const Finish& finish, float* y) {
  if (finish.accumulate) value = value + _mm512_loadu_ps(y);
  _mm512_storeu_ps(y, finish.relu ? avx512::clamped(value) : value);
}

// kOutputs adjacent outputs, y_pixel apart. Pixels of x are contiguous, 16 channels each; its `rows` rows are x_row
// apart. weights (rows, group, kTaps, 16).
template <int kOutputs> LOCKSTEP_TARGET_AVX512 void convolve(const float* x, Index x_row, Index rows, int group,
                                                             const float* weights, const Finish& finish, float* y,
                                                             Index y_pixel) {
  const __m512i first = first_lanes(group);
  for (int out = 0; out < kOutputs; ++out)
    __builtin_prefetch(y + out * y_pixel, 1);  // too far apart for the processor to see a pattern
  __m512 sums[kOutputs];
  for (int out = 0; out < kOutputs; ++out)
    sums[out] = finish.bias == nullptr ? _mm512_setzero_ps() : _mm512_loadu_ps(finish.bias);
  for (Index row = 0; row < rows; ++row, x += x_row)
    for (int j = 0; j < group; ++j, weights += kTaps * kLanes) {
      const __m512i lanes = _mm512_add_epi32(first, _mm512_set1_epi32(j));
      const __m512 w0 = _mm512_loadu_ps(weights), w1 = _mm512_loadu_ps(weights + kLanes),
                   w2 = _mm512_loadu_ps(weights + 2 * kLanes);
#pragma GCC unroll 16
      for (int column = 0; column < kOutputs + 2; ++column) {
        const __m512 value = spread(x + column * kLanes, lanes);
        if (column < kOutputs) sums[column] = _mm512_fmadd_ps(w0, value, sums[column]);
        if (column >= 1 && column <= kOutputs) sums[column - 1] = _mm512_fmadd_ps(w1, value, sums[column - 1]);
        if (column >= 2) sums[column - 2] = _mm512_fmadd_ps(w2, value, sums[column - 2]);
      }
    }
  for (int out = 0; out < kOutputs; ++out) finish_output(sums[out], finish, y + out * y_pixel);
}

using Convolve = void (*)(const float* x, Index x_row, Index rows, int group, const float* weights,
                          const Finish& finish, float* y, Index y_pixel);
inline constexpr Convolve kConvolve[kMostOutputs] = {
    convolve<1>, convolve<2>, convolve<3>,  convolve<4>,  convolve<5>,  convolve<6>,  convolve<7>,
    convolve<8>, convolve<9>, convolve<10>, convolve<11>, convolve<12>, convolve<13>, convolve<14>};

// A row of gradients of `outputs` outputs, y_pixel apart, and the row of x under one row of the kernel.
struct RowOfProducts {
  const float *x, *y_grad;
  Index outputs, y_pixel;
};

// Adds the products of columns [begin, end) of x. kInside: each column is under all taps.
template <int kSpread, bool kInside> LOCKSTEP_INLINE_AVX512 void add_columns(const RowOfProducts& row, Index begin,
                                                                             Index end, const __m512i* lanes,
                                                                             __m512 (&sums)[kSpread][kTaps]) {
  for (Index column = begin; column < end; ++column) {
    __m512 values[kSpread];
    for (int j = 0; j < kSpread; ++j) values[j] = spread(row.x + column * kLanes, lanes[j]);
#pragma GCC unroll 3
    for (Index tap = 0; tap < kTaps; ++tap) {
      if (!kInside && (column < tap || column - tap >= row.outputs)) continue;
      const float* const pixel = row.y_grad + (column - tap) * row.y_pixel;
      if (tap == 0) __builtin_prefetch(pixel + row.outputs * row.y_pixel);  // prefetch the next row
      const __m512 grad = _mm512_loadu_ps(pixel);
#pragma GCC unroll 4
      for (int j = 0; j < kSpread; ++j) sums[j][tap] = _mm512_fmadd_ps(values[j], grad, sums[j][tap]);
    }
  }
}

// sums (kSpread, kTaps, 16) += over `rows` rows of outputs, y_row apart: their gradients times the channels j of each
// group, from `first` on, of the pixels under the taps.
template <int kSpread> LOCKSTEP_TARGET_AVX512 void add_products(RowOfProducts row, Index x_row, Index y_row, Index rows,
                                                                int group, int first, float* to) {
  __m512i lanes[kSpread];
  for (int j = 0; j < kSpread; ++j) lanes[j] = _mm512_add_epi32(first_lanes(group), _mm512_set1_epi32(first + j));
  __m512 sums[kSpread][kTaps];
  for (int j = 0; j < kSpread; ++j)
    for (int tap = 0; tap < kTaps; ++tap) sums[j][tap] = _mm512_loadu_ps(to + (j * kTaps + tap) * kLanes);
  const Index inner = std::min<Index>(kTaps - 1, row.outputs), outer = row.outputs;
  for (Index i = 0; i < rows; ++i, row.x += x_row, row.y_grad += y_row) {
    add_columns<kSpread, false>(row, 0, inner, lanes, sums);
    add_columns<kSpread, true>(row, inner, outer, lanes, sums);
    add_columns<kSpread, false>(row, outer, row.outputs + kTaps - 1, lanes, sums);
  }
  for (int j = 0; j < kSpread; ++j)
    for (int tap = 0; tap < kTaps; ++tap) _mm512_storeu_ps(to + (j * kTaps + tap) * kLanes, sums[j][tap]);
}

// Copies one pixel's channels, 16 to each plane; null: zeros.
LOCKSTEP_INLINE_AVX512 void copy_pixel(const float* from, Index channels, float* to, Index plane) {
  for (Index c = 0; c < channels; c += kLanes, to += plane)
    _mm512_storeu_ps(to, from == nullptr ? _mm512_setzero_ps() : _mm512_loadu_ps(from + c));
}

// The same for a row of pixels.
LOCKSTEP_TARGET_AVX512 inline void copy_pixels(const float* from, Index pixels, Index channels, float* to,
                                               Index plane) {
  for (Index pixel = 0; pixel < pixels; ++pixel, to += kLanes)
    copy_pixel(from == nullptr ? nullptr : from + pixel * channels, channels, to, plane);
}

}  // namespace lockstep::grouped_conv

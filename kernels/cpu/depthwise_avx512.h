// The arithmetic of depthwise.cpp for 3x3 windows and rows of outputs, on vectors of 16 channels: the weights of all
// taps, or their sums, stay in registers along a row. Products and sums are rounded one by one, in the order of the
// plain loops, so the results have the same bits.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/product_avx512.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::depthwise {

using avx512::kLanes;

constexpr std::int64_t kWindow = 3;  // rows and columns

// The rows of the input under one row of outputs: `x` is the first of them inside the image, under row `first` of the
// window.
struct RowsUnder {
  const float* x;
  std::int64_t first, row_step;
  std::int64_t in_width, out_width, stride, pad, channels;

  std::int64_t column(std::int64_t output) const { return output * stride - pad; }
  bool has_all_taps(std::int64_t column) const { return column >= 0 && column + kWindow <= in_width; }
  bool has(std::int64_t column) const { return column >= 0 && column < in_width; }
  // Selects one vector after the other of a row, while channels `c` of `output` are computed.
  std::int64_t in_turn(std::int64_t output, std::int64_t c) const { return c * out_width + output * kLanes; }
  // Prefetches from the first row below these, which the next outputs read.
  void fetch_below(std::int64_t rows, std::int64_t turn) const { __builtin_prefetch(x + rows * row_step + turn); }
};

// One row of outputs, which starts from its present value (`accumulate`), from `bias`, or, if that is null, from 0.
// weights (taps, channels).
template <int kRows> LOCKSTEP_TARGET_AVX512 void convolve_row(const RowsUnder& under, const float* weights,
                                                              const float* bias, bool relu, bool accumulate, float* y) {
  const std::int64_t channels = under.channels;
  for (std::int64_t c = 0; c < channels; c += kLanes) {
    __m512 taps[kRows * kWindow];
    for (int tap = 0; tap < kRows * kWindow; ++tap)
      taps[tap] = _mm512_loadu_ps(weights + (under.first * kWindow + tap) * channels + c);
    const __m512 start = bias == nullptr ? _mm512_setzero_ps() : _mm512_loadu_ps(bias + c);
    for (std::int64_t output = 0; output < under.out_width; ++output) {
      float* const to = y + output * channels + c;
      __builtin_prefetch(y + under.out_width * channels + under.in_turn(output, c), 1);
      under.fetch_below(kRows, under.in_turn(output, c));
      const std::int64_t column = under.column(output);
      const bool is_inner = under.has_all_taps(column);
      const float* const from = under.x + column * channels + c;
      __m512 sum = accumulate ? _mm512_loadu_ps(to) : start;
#pragma GCC unroll 9
      for (int tap = 0; tap < kRows * kWindow; ++tap)
        if (is_inner || under.has(column + tap % kWindow))
          sum = sum + _mm512_loadu_ps(from + tap / kWindow * under.row_step + tap % kWindow * channels) * taps[tap];
      _mm512_storeu_ps(to, relu ? avx512::clamped(sum) : sum);
    }
  }
}

// sums (taps, channels) += the products of a row of gradients and the inputs under each tap, for channels [0, whole), a
// multiple of 16.
template <int kRows> LOCKSTEP_TARGET_AVX512 void add_row_products(const RowsUnder& under, const float* y_grad,
                                                                  std::int64_t whole, float* sums) {
  const std::int64_t channels = under.channels;
  for (std::int64_t c = 0; c < whole; c += kLanes) {
    float* const slots = sums + under.first * kWindow * channels + c;
    __m512 kept[kRows * kWindow];
    for (int tap = 0; tap < kRows * kWindow; ++tap) kept[tap] = _mm512_loadu_ps(slots + tap * channels);
    for (std::int64_t output = 0; output < under.out_width; ++output) {
      const float* const gradient = y_grad + output * channels + c;
      __builtin_prefetch(y_grad + under.out_width * channels + under.in_turn(output, c));
      under.fetch_below(kRows, under.in_turn(output, c));
      const std::int64_t column = under.column(output);
      const bool is_inner = under.has_all_taps(column);
      const float* const from = under.x + column * channels + c;
      const __m512 factor = _mm512_loadu_ps(gradient);
#pragma GCC unroll 9
      for (int tap = 0; tap < kRows * kWindow; ++tap)
        if (is_inner || under.has(column + tap % kWindow))
          kept[tap] =
              kept[tap] + _mm512_loadu_ps(from + tap / kWindow * under.row_step + tap % kWindow * channels) * factor;
    }
    for (int tap = 0; tap < kRows * kWindow; ++tap) _mm512_storeu_ps(slots + tap * channels, kept[tap]);
  }
}

}  // namespace lockstep::depthwise

// The arithmetic of winograd.cpp, on vectors of 16 channels. All transforms share the points 0, 1, -1, 2, -2, infinity; the
// factors that make the input's transform whole (4, 6, 6, 24, 24, 1) are divided out where the weights pass.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "lockstep/core/cpu_dispatch.h"

#define LOCKSTEP_WINOGRAD LOCKSTEP_TARGET_AVX512 __attribute__((always_inline)) inline

namespace lockstep::winograd {

using Index = std::int64_t;

constexpr Index kPoints = 6;  // a direction; a tile has 36
constexpr Index kOut = 2;     // outputs of a tile, a direction
constexpr Index kKernel = 5;
constexpr Index kLanes = 16;

// Six inputs to the six points.
LOCKSTEP_WINOGRAD void transform_input(const __m512* d, Index step, __m512* out, Index out_step) {
  const __m512 a = 4 * d[2 * step] - d[4 * step], b = 4 * d[step] - d[3 * step];
  const __m512 c = d[4 * step] - d[2 * step], e = 2 * (d[3 * step] - d[step]);
  out[0] = 4 * d[0] - 5 * d[2 * step] + d[4 * step];
  out[out_step] = a + b;
  out[2 * out_step] = a - b;
  out[3 * out_step] = c + e;
  out[4 * out_step] = c - e;
  out[5 * out_step] = 4 * d[step] - 5 * d[3 * step] + d[5 * step];
}

// The values of the polynomial with coefficients g at the points, over the factors: five weights.
LOCKSTEP_WINOGRAD void transform_kernel(const __m512* g, Index step, __m512* out, Index out_step) {
  const __m512 even_1 = g[0] + g[2 * step] + g[4 * step], odd_1 = g[step] + g[3 * step];
  const __m512 even_2 = g[0] + 4 * g[2 * step] + 16 * g[4 * step], odd_2 = 2 * g[step] + 8 * g[3 * step];
  out[0] = g[0] * (1.0F / 4);
  out[out_step] = (even_1 + odd_1) * (1.0F / 6);
  out[2 * out_step] = (even_1 - odd_1) * (1.0F / 6);
  out[3 * out_step] = (even_2 + odd_2) * (1.0F / 24);
  out[4 * out_step] = (even_2 - odd_2) * (1.0F / 24);
  out[5 * out_step] = g[4 * step];
}

// The same for two gradients, the factors left to gather_kernel().
LOCKSTEP_WINOGRAD void transform_gradient(const __m512* g, Index step, __m512* out, Index out_step) {
  const __m512 twice = 2 * g[step];
  out[0] = g[0];
  out[out_step] = g[0] + g[step];
  out[2 * out_step] = g[0] - g[step];
  out[3 * out_step] = g[0] + twice;
  out[4 * out_step] = g[0] - twice;
  out[5 * out_step] = g[step];
}

// The points back to two outputs.
LOCKSTEP_WINOGRAD void gather_output(const __m512* m, Index step, __m512* out, Index out_step) {
  out[0] = m[0] + (m[step] + m[2 * step]) + (m[3 * step] + m[4 * step]);
  out[out_step] = (m[step] - m[2 * step]) + 2 * (m[3 * step] - m[4 * step]) + m[5 * step];
}

// The points back to five weight gradients.
LOCKSTEP_WINOGRAD void gather_kernel(const __m512* m, Index step, __m512* out, Index out_step) {
  const __m512 sum_1 = (m[step] + m[2 * step]) * (1.0F / 6), difference_1 = (m[step] - m[2 * step]) * (1.0F / 6);
  const __m512 sum_2 = (m[3 * step] + m[4 * step]) * (1.0F / 24), difference_2 = (m[3 * step] - m[4 * step]) * (1.0F / 24);
  out[0] = m[0] * (1.0F / 4) + sum_1 + sum_2;
  out[out_step] = difference_1 + 2 * difference_2;
  out[2 * out_step] = sum_1 + 4 * sum_2;
  out[3 * out_step] = difference_1 + 8 * difference_2;
  out[4 * out_step] = sum_1 + 16 * sum_2 + m[5 * step];
}

// c (rows, 64) = or += a * b, where a's element (row, k) lies at row * a_row + k * a_inner, b's (k, column) at k * b_inner + column.
template <int kRows>
LOCKSTEP_WINOGRAD void multiply_rows(Index inner, const float* a, Index a_row, Index a_inner, const float* b, Index b_inner, float* c,
                                     Index c_row, bool accumulate) {
  __m512 sums[kRows][4];
  for (int row = 0; row < kRows; ++row)
    for (int v = 0; v < 4; ++v) sums[row][v] = accumulate ? _mm512_loadu_ps(c + row * c_row + v * kLanes) : _mm512_setzero_ps();
  for (Index k = 0; k < inner; ++k, a += a_inner, b += b_inner) {
    const __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(b + 16), b2 = _mm512_loadu_ps(b + 32), b3 = _mm512_loadu_ps(b + 48);
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      const __m512 factor = _mm512_set1_ps(a[row * a_row]);
      sums[row][0] = _mm512_fmadd_ps(factor, b0, sums[row][0]);
      sums[row][1] = _mm512_fmadd_ps(factor, b1, sums[row][1]);
      sums[row][2] = _mm512_fmadd_ps(factor, b2, sums[row][2]);
      sums[row][3] = _mm512_fmadd_ps(factor, b3, sums[row][3]);
    }
  }
  for (int row = 0; row < kRows; ++row)
    for (int v = 0; v < 4; ++v) _mm512_storeu_ps(c + row * c_row + v * kLanes, sums[row][v]);
}

// c (rows, columns) = or += a * b; columns in multiples of 64.
LOCKSTEP_TARGET_AVX512 inline void multiply(Index rows, Index columns, Index inner, const float* a, Index a_row, Index a_inner,
                                            const float* b, float* c, bool accumulate) {
  for (Index column = 0; column < columns; column += 4 * kLanes) {
    Index row = 0;
    for (; row + 6 <= rows; row += 6)
      multiply_rows<6>(inner, a + row * a_row, a_row, a_inner, b + column, columns, c + row * columns + column, columns, accumulate);
    for (; row + 2 <= rows; row += 2)
      multiply_rows<2>(inner, a + row * a_row, a_row, a_inner, b + column, columns, c + row * columns + column, columns, accumulate);
    for (; row < rows; ++row)
      multiply_rows<1>(inner, a + row * a_row, a_row, a_inner, b + column, columns, c + row * columns + column, columns, accumulate);
  }
}

}  // namespace lockstep::winograd

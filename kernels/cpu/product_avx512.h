// Matrix products on AVX-512 for shapes that a general sgemm spends too long preparing: no operand is packed.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "lockstep/core/cpu_dispatch.h"

#define LOCKSTEP_INLINE_AVX512 LOCKSTEP_TARGET_AVX512 __attribute__((always_inline)) inline

namespace lockstep::avx512 {

using Index = std::int64_t;

constexpr Index kLanes = 16;

// c (rows, 64) = or += a * b, where a's element (row, k) lies at row * a_row + k * a_inner, b's (k, column) at k * b_inner + column.
template <int kRows>
LOCKSTEP_INLINE_AVX512 void multiply_rows(Index inner, const float* a, Index a_row, Index a_inner, const float* b, Index b_inner, float* c,
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

// c (rows, columns) = or += a * b; columns in multiples of 64. Six rows by four vectors are summed in registers, which
// keeps the multipliers busy as long as b's 64 columns stay in the second-level cache.
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

}  // namespace lockstep::avx512

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

// c (rows, 64) = or += a * b as multiply() has them, of a panel b (inner, 64) whose rows follow each other, and c's rows c_row apart. A
// long sum is made in pieces whose part of b stays in the second-level cache.
LOCKSTEP_TARGET_AVX512 inline void multiply_panel(Index rows, Index inner, const float* a, Index a_row, const float* b, float* c,
                                                  Index c_row, bool accumulate) {
  constexpr Index kPanel = 4 * kLanes, kPiece = 512;
  for (Index begin = 0; begin < inner; begin += kPiece, accumulate = true) {
    const Index count = inner - begin < kPiece ? inner - begin : kPiece;
    Index row = 0;
    for (; row + 6 <= rows; row += 6)
      multiply_rows<6>(count, a + row * a_row + begin, a_row, 1, b + begin * kPanel, kPanel, c + row * c_row, c_row, accumulate);
    for (; row + 2 <= rows; row += 2)
      multiply_rows<2>(count, a + row * a_row + begin, a_row, 1, b + begin * kPanel, kPanel, c + row * c_row, c_row, accumulate);
    for (; row < rows; ++row)
      multiply_rows<1>(count, a + row * a_row + begin, a_row, 1, b + begin * kPanel, kPanel, c + row * c_row, c_row, accumulate);
  }
}

// In place, of 16 rows of 16 floats. (With masks of all lanes: GCC 12 warns of the undefined operand of the forms without.)
LOCKSTEP_INLINE_AVX512 void transpose_square(__m512* rows) {
  constexpr __mmask16 kAll = 0xffff;
  __m512 pairs[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_maskz_unpacklo_ps(kAll, rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_maskz_unpackhi_ps(kAll, rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {  // columns 2 j and 2 j + 1 of each four, of rows i to i + 3
      const __m512d low = _mm512_castps_pd(pairs[i + j]), high = _mm512_castps_pd(pairs[i + 2 + j]);
      rows[i + 2 * j] = _mm512_castpd_ps(_mm512_maskz_unpacklo_pd(0xff, low, high));
      rows[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_maskz_unpackhi_pd(0xff, low, high));
    }
  for (int i = 0; i < 4; ++i) {  // column i of each four: gather the fours
    const __m512 low02 = _mm512_maskz_shuffle_f32x4(kAll, rows[i], rows[4 + i], 0x88),
                 low13 = _mm512_maskz_shuffle_f32x4(kAll, rows[i], rows[4 + i], 0xdd);
    const __m512 high02 = _mm512_maskz_shuffle_f32x4(kAll, rows[8 + i], rows[12 + i], 0x88);
    const __m512 high13 = _mm512_maskz_shuffle_f32x4(kAll, rows[8 + i], rows[12 + i], 0xdd);
    pairs[i] = _mm512_maskz_shuffle_f32x4(kAll, low02, high02, 0x88);
    pairs[4 + i] = _mm512_maskz_shuffle_f32x4(kAll, low13, high13, 0x88);
    pairs[8 + i] = _mm512_maskz_shuffle_f32x4(kAll, low02, high02, 0xdd);
    pairs[12 + i] = _mm512_maskz_shuffle_f32x4(kAll, low13, high13, 0xdd);
  }
  for (int i = 0; i < 16; ++i) rows[i] = pairs[i];
}

// to (columns, 64) = from (64, columns) transposed, from's rows from_row apart.
LOCKSTEP_TARGET_AVX512 inline void transpose_panel(const float* from, Index from_row, Index columns, float* to) {
  constexpr Index kPanel = 4 * kLanes;
  Index column = 0;
  for (; column + kLanes <= columns; column += kLanes)
    for (Index row = 0; row < kPanel; row += kLanes) {
      __m512 square[kLanes];
      for (Index i = 0; i < kLanes; ++i) square[i] = _mm512_loadu_ps(from + (row + i) * from_row + column);
      transpose_square(square);
      for (Index i = 0; i < kLanes; ++i) _mm512_storeu_ps(to + (column + i) * kPanel + row, square[i]);
    }
  for (; column < columns; ++column)
    for (Index row = 0; row < kPanel; ++row) to[column * kPanel + row] = from[row * from_row + column];
}

}  // namespace lockstep::avx512

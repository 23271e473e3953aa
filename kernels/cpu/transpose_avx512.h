// Transposition on AVX-512, in registers.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/product_avx512.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::avx512 {

// Transposes 16 rows of 16 floats in place. (Uses masks of all lanes, because GCC 12 warns of undefined operands
// otherwise.)
LOCKSTEP_INLINE_AVX512 void transpose_square(__m512* rows) {
  constexpr __mmask16 kAll = 0xffff;
  __m512 pairs[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_maskz_unpacklo_ps(kAll, rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_maskz_unpackhi_ps(kAll, rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {  // columns 2 j and 2 j + 1 of each group of four, for rows i to i + 3
      const __m512d low = _mm512_castps_pd(pairs[i + j]), high = _mm512_castps_pd(pairs[i + 2 + j]);
      rows[i + 2 * j] = _mm512_castpd_ps(_mm512_maskz_unpacklo_pd(0xff, low, high));
      rows[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_maskz_unpackhi_pd(0xff, low, high));
    }
  for (int i = 0; i < 4; ++i) {  // column i of each group of four: combine the groups
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

// out (rows, columns) = in (columns, rows) transposed; rows are in_row and out_row apart. Squares of 16 x 16 are
// transposed in registers, the edges element by element.
LOCKSTEP_TARGET_AVX512 inline void transpose(const float* in, Index in_row, float* out, Index out_row, Index rows,
                                             Index columns) {
  const Index whole_rows = rows - rows % kLanes, whole_columns = columns - columns % kLanes;
  for (Index column = 0; column < whole_columns; column += kLanes)
    for (Index row = 0; row < whole_rows; row += kLanes) {
      __m512 square[kLanes];
      for (Index i = 0; i < kLanes; ++i) square[i] = _mm512_loadu_ps(in + (column + i) * in_row + row);
      transpose_square(square);
      for (Index i = 0; i < kLanes; ++i) _mm512_storeu_ps(out + (row + i) * out_row + column, square[i]);
    }
  for (Index row = 0; row < rows; ++row)
    for (Index column = row < whole_rows ? whole_columns : 0; column < columns; ++column)
      std::memcpy(out + row * out_row + column, in + column * in_row + row, sizeof(float));
}

}  // namespace lockstep::avx512

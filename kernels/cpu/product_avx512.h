// Matrix products on AVX-512, without packing, for shapes for which a general sgemm spends too much time on packing.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "lockstep/core/cpu_dispatch.h"

#define LOCKSTEP_INLINE_AVX512 LOCKSTEP_TARGET_AVX512 __attribute__((always_inline)) inline

namespace lockstep::avx512 {

using Index = std::int64_t;

constexpr Index kLanes = 16;

// The mask of the lanes that hold the first `count` elements; `count` may be negative or larger than the number of
// lanes.
LOCKSTEP_INLINE_AVX512 __mmask16 lanes_of(Index count) {
  return static_cast<__mmask16>((1U << static_cast<unsigned>(std::clamp<Index>(count, 0, kLanes))) - 1);
}

// The memory that a product prefetches while it computes, one cache line per step of its sums.
struct FetchNothing {
  LOCKSTEP_INLINE_AVX512 void operator()(Index) const {}
};
// Line k of the operand that is used next.
struct FetchNext {
  const float* at;
  Index step;
  LOCKSTEP_INLINE_AVX512 void operator()(Index k) const { __builtin_prefetch(at + k * step); }
};
// The lines, four per row, to which the results will be stored.
struct FetchResults {
  const float* at;
  Index row, lines;
  LOCKSTEP_INLINE_AVX512 void operator()(Index k) const {
    if (k < lines) __builtin_prefetch(at + k / 4 * row + k % 4 * kLanes, 1);
  }
};

// The initial values of sums, a row of 16 * kVectors floats (null: 0), and whether ReLU is applied to the result.
struct Ends {
  const float* start = nullptr;
  bool relu = false;
};

LOCKSTEP_INLINE_AVX512 __m512 clamped(__m512 value) {
  // False for NaN, which passes unchanged.
  const __mmask16 negative = _mm512_cmp_ps_mask(value, _mm512_setzero_ps(), _CMP_LT_OQ);
  return _mm512_mask_mov_ps(value, negative, _mm512_setzero_ps());
}

// c (kRows, 16 * kVectors) = or += a * b. Element (row, k) of a is at row * a_row + k * a_inner, element (k, column) of
// b at k * b_inner + column.
template <int kRows, int kVectors = 4, typename Fetch = FetchNothing>
LOCKSTEP_INLINE_AVX512 void multiply_rows(Index inner, const float* a, Index a_row, Index a_inner, const float* b,
                                          Index b_inner, float* c, Index c_row, bool accumulate,
                                          const Fetch& fetch = {}, const Ends& ends = {}) {
  __m512 sums[kRows][kVectors];
  for (int row = 0; row < kRows; ++row)
    for (int v = 0; v < kVectors; ++v) {
      const float* const start = accumulate ? c + row * c_row : ends.start;
      sums[row][v] = start == nullptr ? _mm512_setzero_ps() : _mm512_loadu_ps(start + v * kLanes);
    }
  for (Index k = 0; k < inner; ++k, a += a_inner, b += b_inner) {
    fetch(k);
    __m512 columns[kVectors];
    for (int v = 0; v < kVectors; ++v) columns[v] = _mm512_loadu_ps(b + v * kLanes);
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      const __m512 factor = _mm512_set1_ps(a[row * a_row]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[row][v] = _mm512_fmadd_ps(factor, columns[v], sums[row][v]);
    }
  }
  for (int row = 0; row < kRows; ++row)
    for (int v = 0; v < kVectors; ++v)
      _mm512_storeu_ps(c + row * c_row + v * kLanes, ends.relu ? clamped(sums[row][v]) : sums[row][v]);
}

// The same for any number of vectors; each group of four begins `b_panel` after the previous one.
template <int kRows> LOCKSTEP_TARGET_AVX512 void multiply_vectors(Index vectors, Index inner, const float* a,
                                                                  Index a_row, Index a_inner, const float* b,
                                                                  Index b_inner, Index b_panel, float* c, Index c_row,
                                                                  bool accumulate) {
  for (; vectors >= 4; vectors -= 4, b += b_panel, c += 4 * kLanes)
    multiply_rows<kRows, 4>(inner, a, a_row, a_inner, b, b_inner, c, c_row, accumulate);
  if (vectors == 3) multiply_rows<kRows, 3>(inner, a, a_row, a_inner, b, b_inner, c, c_row, accumulate);
  if (vectors == 2) multiply_rows<kRows, 2>(inner, a, a_row, a_inner, b, b_inner, c, c_row, accumulate);
  if (vectors == 1) multiply_rows<kRows, 1>(inner, a, a_row, a_inner, b, b_inner, c, c_row, accumulate);
}

// The same for any number of rows, kRows at a time.
template <int kRows, int kVectors>
LOCKSTEP_TARGET_AVX512 void multiply_column(Index rows, Index inner, const float* a, Index a_row, Index a_inner,
                                            const float* b, Index b_inner, float* c, Index c_row, bool accumulate) {
  for (; rows >= kRows; rows -= kRows, a += kRows * a_row, c += kRows * c_row)
    multiply_rows<kRows, kVectors>(inner, a, a_row, a_inner, b, b_inner, c, c_row, accumulate);
  for (; rows >= 4; rows -= 4, a += 4 * a_row, c += 4 * c_row)
    multiply_rows<4, kVectors>(inner, a, a_row, a_inner, b, b_inner, c, c_row, accumulate);
  for (; rows > 0; --rows, a += a_row, c += c_row)
    multiply_rows<1, kVectors>(inner, a, a_row, a_inner, b, b_inner, c, c_row, accumulate);
}

// c (rows, columns) = or += a * b; columns in multiples of 16. Up to 24 vectors are summed in registers, which keeps
// the multipliers busy as long as b's 64 columns are in the second-level cache.
LOCKSTEP_TARGET_AVX512 inline void multiply(Index rows, Index columns, Index inner, const float* a, Index a_row,
                                            Index a_inner, const float* b, float* c, bool accumulate) {
  Index column = 0;
  for (; column + 4 * kLanes <= columns; column += 4 * kLanes)
    multiply_column<6, 4>(rows, inner, a, a_row, a_inner, b + column, columns, c + column, columns, accumulate);
  const Index rest = (columns - column) / kLanes;
  if (rest == 3)
    multiply_column<8, 3>(rows, inner, a, a_row, a_inner, b + column, columns, c + column, columns, accumulate);
  if (rest == 2)
    multiply_column<12, 2>(rows, inner, a, a_row, a_inner, b + column, columns, c + column, columns, accumulate);
  if (rest == 1)
    multiply_column<16, 1>(rows, inner, a, a_row, a_inner, b + column, columns, c + column, columns, accumulate);
}

// c (rows, 64) = `ends` applied to a * b, as in multiply(), for a panel b (inner, 64) with contiguous rows; c's rows
// are c_row apart and are prefetched before they are written. A long sum is computed in pieces whose part of b fits
// into the second-level cache.
LOCKSTEP_TARGET_AVX512 inline void multiply_panel(Index rows, Index inner, const float* a, Index a_row, const float* b,
                                                  float* c, Index c_row, const Ends& ends) {
  constexpr Index kPanel = 4 * kLanes, kPiece = 1024;
  for (Index begin = 0; begin < inner; begin += kPiece) {
    const Index count = inner - begin < kPiece ? inner - begin : kPiece;
    const Ends own{ends.start, ends.relu && begin + count == inner};
    const bool accumulate = begin > 0;
    Index row = 0;
    for (; row + 6 <= rows; row += 6)
      multiply_rows<6>(count, a + row * a_row + begin, a_row, 1, b + begin * kPanel, kPanel, c + row * c_row, c_row,
                       accumulate, FetchResults{c + row * c_row, c_row, 24}, own);
    for (; row + 2 <= rows; row += 2)
      multiply_rows<2>(count, a + row * a_row + begin, a_row, 1, b + begin * kPanel, kPanel, c + row * c_row, c_row,
                       accumulate, FetchNothing{}, own);
    for (; row < rows; ++row)
      multiply_rows<1>(count, a + row * a_row + begin, a_row, 1, b + begin * kPanel, kPanel, c + row * c_row, c_row,
                       accumulate, FetchNothing{}, own);
  }
}

}  // namespace lockstep::avx512

// The layout in which AMX multiplies matrices of floats: panels of 32 lines (rows of a, or columns of b), cut into
// tiles. The sums are cut into steps of 32 elements; for each step and each of a float's three parts, a panel has two
// tiles of 16 lines. Elements j and j + 16 of a line's 32 form a pair. Any pairing works as long as both operands use
// the same one, and this one needs no shuffles.
//
// The rows of a tile are lines in the left operand (side A), and pairs in the right operand (side B).
//
// This file splits floats into parts, and finds where in an operand each row of a tile comes from.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/cpu/simd/transpose.h"

namespace lockstep::amx {

using avx512::Index;
using avx512::kLanes;
using avx512::mask_of;

inline constexpr Index kLinesOfPanel = 32, kStep = 32;
inline constexpr Index kRowBytes = 64, kTileBytes = 16 * kRowBytes, kPartBytes = 2 * kTileBytes, kParts = 3,
                       kStepBytes = kParts * kPartBytes;

constexpr Index in_units(Index value, Index unit) { return (value + unit - 1) / unit; }

// An operand, seen as lines by elements of the sums. One of the two distances is 1.
struct Lines {
  const float* data;
  Index count, line_step, inner_step;

  const float* at(Index line, Index inner) const { return data + line * line_step + inner * inner_step; }
  bool is_along_sums() const { return inner_step == 1; }
};

enum class Side { kA, kB };

// 32 lines over elements [begin, end) of the sums.
struct Range {
  Index line, begin, end;

  Index steps() const { return in_units(end - begin, kStep); }
};

// Returns the upper half of each float, rounded; x keeps the rest.
LOCKSTEP_TARGET_AVX512 LOCKSTEP_ALWAYS_INLINE __m512i take_part(__m512& x) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  const __m512i part = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000)), upper);
  x = _mm512_sub_ps(x, _mm512_castsi512_ps(part));
  return part;
}

// Stores pairs of the upper halves of `low` and `high`.
LOCKSTEP_TARGET_AVX512 LOCKSTEP_ALWAYS_INLINE void store_pairs(__m512i low, __m512i high, std::byte* to) {
  _mm512_store_si512(to, _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_maskz_srli_epi32(0xffff, low, 16), high));
}

// Stores one row of the tiles of all parts. The last part has at most eight bits and is not rounded, so that NaN, whose
// bits rounding might destroy, stays NaN.
LOCKSTEP_TARGET_AVX512 LOCKSTEP_ALWAYS_INLINE void store_parts(__m512 low, __m512 high, std::byte* row) {
  for (Index part = 0; part + 1 < kParts; ++part, row += kPartBytes) {
    const __m512i low_part = take_part(low);
    store_pairs(low_part, take_part(high), row);
  }
  store_pairs(_mm512_castps_si512(low), _mm512_castps_si512(high), row);
}

// The source of a row of a panel's tiles: two vectors, `apart` floats from each other. Elements outside the matrix are
// 0.
struct RowSource {
  const float* low;
  Index apart;
  __mmask16 low_lanes, high_lanes;

  LOCKSTEP_TARGET_AVX512 LOCKSTEP_ALWAYS_INLINE __m512 low_vector() const {
    return _mm512_maskz_loadu_ps(low_lanes, low);
  }
  LOCKSTEP_TARGET_AVX512 LOCKSTEP_ALWAYS_INLINE __m512 high_vector() const {
    return _mm512_maskz_loadu_ps(high_lanes, low + apart);
  }
};

// For a matrix stored in the order of its tiles (side A along the sums, side B across): the source of row `row` of the
// tile of `step` and `half`.
LOCKSTEP_TARGET_AVX512 LOCKSTEP_ALWAYS_INLINE RowSource row_source(const Lines& matrix, const Range& range, Index step,
                                                                   Index half, Index row) {
  const Index line = range.line + half * kLanes, inner = range.begin + step * kStep;
  if (matrix.is_along_sums()) {
    const Index left = line + row < matrix.count ? range.end - inner : 0;
    return {matrix.at(line + row, inner), kLanes, mask_of(left), mask_of(left - kLanes)};
  }
  const __mmask16 lanes = mask_of(matrix.count - line);
  const auto mask = [&](Index at) __attribute__((always_inline)) {
    return static_cast<__mmask16>(at < range.end ? lanes : 0);
  };
  return {matrix.at(line, inner + row), kLanes * matrix.inner_step, mask(inner + row), mask(inner + row + kLanes)};
}

}  // namespace lockstep::amx

// Moves sums from AMX's tiles to the result.
#pragma once

#include "kernels/cpu/products/amx_tiles.h"

namespace lockstep::amx {

// The block of c that one panel and `panels` other panels produce, and the operations on sums before they are stored.
struct Results {
  const float* sums = nullptr;  // of each pair of panels
  Index panels = 0;
  bool by_columns = false;  // the one panel's lines are the block's columns; false: its rows
  bool turned = false;      // B's lines are the block's rows; false: A's
  Index rows = 0, columns = 0;
  float* c = nullptr;
  Index c_step = 0;
  bool accumulate = false, relu = false;
  const float* start = nullptr;  // added to the block's columns
};

// Stores results in small parts, if possible in the order of memory: a row of a pair of panels, or a square of 16 x 16
// if they are transposed.
class ResultWriter {
 public:
  ResultWriter() = default;
  explicit ResultWriter(const Results& results)
      : r_(results), parts_left_(results.panels * (results.turned ? 4 : kLinesOfPanel)) {}

  Index parts_left() const { return parts_left_; }

  // Not inlined, because registers are scarce in the code between tile operations.
  LOCKSTEP_TARGET_AVX512 __attribute__((noinline)) void store_parts(Index count) {
    parts_left_ -= count;
    for (; count > 0; --count) r_.turned ? store_square() : store_row();
  }

 private:
  // Advances three nested indices, of which the first runs fastest.
  static void go_on(Index& first, Index first_count, Index& second, Index second_count, Index& third) {
    if (++first < first_count) return;
    first = 0;
    if (++second < second_count) return;
    second = 0;
    ++third;
  }
  const float* tile(Index a_half, Index b_half) const {
    return r_.sums + panel_ * kSumsOfPanels + (a_half * 2 + b_half) * kSumsOfTile;
  }
  Index first_row() const { return r_.by_columns ? panel_ * kLinesOfPanel : 0; }
  Index first_column() const { return r_.by_columns ? 0 : panel_ * kLinesOfPanel; }

  LOCKSTEP_TARGET_AVX512 LOCKSTEP_ALWAYS_INLINE void finish(__m512 sum, Index row, Index column, __mmask16 mask) const {
    float* const to = r_.c + row * r_.c_step + column;
    if (r_.start != nullptr) sum = sum + _mm512_maskz_loadu_ps(mask, r_.start + column);
    if (r_.accumulate) sum = sum + _mm512_maskz_loadu_ps(mask, to);
    _mm512_mask_storeu_ps(to, mask, r_.relu ? avx512::clamped(sum) : sum);
  }
  LOCKSTEP_TARGET_AVX512 LOCKSTEP_ALWAYS_INLINE void store_row() {
    const Index row = first_row() + row_, column = first_column();
    for (Index half = 0; half < 2 && row < r_.rows; ++half) {
      const Index at = column + half * kLanes;
      finish(_mm512_load_ps(tile(row_ / kLanes, half) + row_ % kLanes * kLanes), row, at, mask_of(r_.columns - at));
    }
    r_.by_columns ? go_on(row_, kLinesOfPanel, panel_, r_.panels, half_)
                  : go_on(panel_, r_.panels, row_, kLinesOfPanel, half_);
  }
  LOCKSTEP_TARGET_AVX512 LOCKSTEP_ALWAYS_INLINE void store_square() {
    const float* const from = tile(other_half_, half_);
    const Index row = first_row() + half_ * kLanes, column = first_column() + other_half_ * kLanes;
    const __mmask16 mask = mask_of(r_.columns - column);
    avx512::Vector square[kLanes];
    for (Index i = 0; i < kLanes; ++i) square[i] = _mm512_load_ps(from + i * kLanes);
    avx512::transpose_square(square);
    for (Index i = 0; i < std::min(kLanes, r_.rows - row); ++i) finish(square[i], row + i, column, mask);
    r_.by_columns ? go_on(other_half_, 2, half_, 2, panel_) : go_on(other_half_, 2, panel_, r_.panels, half_);
  }

  Results r_;
  // half_, other_half_: the halves of the block's rows and columns.
  Index parts_left_ = 0, panel_ = 0, row_ = 0, half_ = 0, other_half_ = 0;
};

}  // namespace lockstep::amx

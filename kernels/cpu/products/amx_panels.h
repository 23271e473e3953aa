// Packs an operand's panels (amx_parts.h), all at once or in steps between other work.
#pragma once

#include "kernels/cpu/products/amx_parts.h"

namespace lockstep::amx {

// Packs a panel of a matrix that is stored in the order of its tiles. pack_rows() packs the given number of rows of
// tiles, in the order of the matrix in memory.
class PanelPacker {
 public:
  PanelPacker() = default;
  // Also prefetches the floats at a distance of `later` from those it packs, which are packed next.
  PanelPacker(const Lines& matrix, const Range& range, Index later, std::byte* to)
      : matrix_(&matrix),
        range_(range),
        later_(later),
        tiles_(to),
        rows_left_(range.steps() * 2 * kLanes),
        is_whole_(range.line + kLinesOfPanel <= matrix.count && (range.end - range.begin) % kStep == 0),
        low_(matrix.at(range.line, range.begin)),
        to_(to) {
    if (matrix.is_along_sums()) {  // one line's steps, then the next line
      apart_ = kLanes;
      first_ = {range.steps(), kStep, kStepBytes};
      second_ = {kLinesOfPanel, matrix.line_step, kRowBytes};
    } else {  // the halves of a pair of rows, then the pairs, then the steps
      apart_ = kLanes * matrix.inner_step;
      first_ = {2, kLanes, kTileBytes};
      second_ = {kLanes, matrix.inner_step, kRowBytes};
      third_ = {range.steps(), kStep * matrix.inner_step, kStepBytes};
    }
  }

  Index rows_left() const { return rows_left_; }

  // Not inlined, because registers are scarce in the code between tile operations.
  LOCKSTEP_TARGET_AVX512 __attribute__((noinline)) void pack_rows(Index count) {
    rows_left_ -= count;
    while (count > 0) {
      const Index run = std::min(count, first_.count - first_.i);
      is_whole_ ? pack_run(run) : pack_partial_run(run);
      count -= run, first_.i += run;
      go_on();
    }
  }

 private:
  // A loop over rows of tiles: the offset from one to the next.
  struct Loop {
    Index count = 1, floats = 0, bytes = 0, i = 0;
  };

  LOCKSTEP_TARGET_AVX512 LOCKSTEP_ALWAYS_INLINE void pack_run(Index count) const {
    const float* low = low_ + first_.i * first_.floats;
    std::byte* to = to_ + first_.i * first_.bytes;
    for (; count > 0; --count, low += first_.floats, to += first_.bytes) {
      fetch(low + later_), fetch(low + apart_ + later_);
      store_parts(_mm512_loadu_ps(low), _mm512_loadu_ps(low + apart_), to);
    }
  }
  LOCKSTEP_TARGET_AVX512 LOCKSTEP_ALWAYS_INLINE void pack_partial_run(Index count) const {
    for (Index i = first_.i; i < first_.i + count; ++i) {
      std::byte* const to = to_ + i * first_.bytes;
      const Index at = to - tiles_, row = at % kPartBytes / kRowBytes;
      const RowSource source = row_source(*matrix_, range_, at / kStepBytes, row / kLanes, row % kLanes);
      store_parts(source.low_vector(), source.high_vector(), to);
    }
  }
  static LOCKSTEP_TARGET_AVX512 LOCKSTEP_ALWAYS_INLINE void fetch(const float* line) {
    _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T0);
  }

  void go_on() {
    if (first_.i < first_.count) return;
    first_.i = 0;
    low_ += second_.floats, to_ += second_.bytes;
    if (++second_.i < second_.count) return;
    second_.i = 0;
    low_ += third_.floats - second_.count * second_.floats, to_ += third_.bytes - second_.count * second_.bytes;
  }

  const Lines* matrix_ = nullptr;
  Range range_ = {};
  Index later_ = 0;
  std::byte* tiles_ = nullptr;
  Index rows_left_ = 0;
  bool is_whole_ = true;
  Index apart_ = 0;  // distance of the two vectors of a row
  Loop first_, second_, third_;
  const float* low_ = nullptr;  // start of the first loop
  std::byte* to_ = nullptr;
};

// Packs a panel at once, of a matrix stored in either order: if it is not stored in the order of its tiles, squares of
// its elements are transposed.
LOCKSTEP_TARGET_AVX512 inline void pack_panel(const Lines& matrix, Side side, const Range& range, std::byte* to) {
  const bool turned = matrix.is_along_sums() != (side == Side::kA);
  for (Index step = 0; step < range.steps(); ++step)
    for (Index half = 0; half < 2; ++half) {
      avx512::Vector low[kLanes], high[kLanes];
      for (Index i = 0; i < kLanes; ++i) {
        const RowSource source = row_source(matrix, range, step, half, i);
        low[i] = source.low_vector(), high[i] = source.high_vector();
      }
      if (turned) avx512::transpose_square(low), avx512::transpose_square(high);
      std::byte* const tile = to + step * kStepBytes + half * kTileBytes;
      for (Index i = 0; i < kLanes; ++i) store_parts(low[i], high[i], tile + i * kRowBytes);
    }
}

}  // namespace lockstep::amx

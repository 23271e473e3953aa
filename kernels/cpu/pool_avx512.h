// Max pooling on AVX-512: the maxima of 64 channels and their positions stay in registers while the window is scanned.
// Positions have 16 bits, as in memory; the mask of a comparison selects floats and positions alike.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <limits>

#include "kernels/cpu/product_avx512.h"
#include "kernels/cpu/windows.h"

namespace lockstep::avx512 {

// kVectors x 16 channels from `channel` on; in the last vector only those in `mask`.
template <int kVectors> LOCKSTEP_INLINE_AVX512 void pool_lanes(const PoolWindow& window, Index channel, __mmask16 mask,
                                                               float* y, std::uint16_t* argmax) {
  __m512 best[kVectors];
  __m256i winner[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    best[v] = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    winner[v] = _mm256_set1_epi16(static_cast<short>(window.place));
  }
  const float* row = window.x + channel;
  int row_place = window.place;
  for (Index r = 0; r < window.rows; ++r, row += window.row_step, row_place += window.width) {
    const float* tap = row;
    int place = row_place;
    for (Index s = 0; s < window.columns; ++s, tap += window.channels, ++place) {
      const __m256i here = _mm256_set1_epi16(static_cast<short>(place));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const __m512 value =
            _mm512_maskz_loadu_ps(v + 1 < kVectors ? static_cast<__mmask16>(0xffff) : mask, tap + v * kLanes);
        const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q),
                        is_more = _mm512_cmp_ps_mask(value, best[v], _CMP_GT_OQ);
        const auto wins = static_cast<__mmask16>(is_nan | is_more);
        best[v] = _mm512_mask_mov_ps(best[v], wins, value);
        winner[v] = _mm256_mask_mov_epi16(winner[v], wins, here);
      }
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    const __mmask16 lanes = v + 1 < kVectors ? static_cast<__mmask16>(0xffff) : mask;
    _mm512_mask_storeu_ps(y + channel + v * kLanes, lanes, best[v]);
    _mm256_mask_storeu_epi16(argmax + channel + v * kLanes, lanes, winner[v]);
  }
}

// All channels of one output pixel.
LOCKSTEP_TARGET_AVX512 inline void pool_pixel(const PoolWindow& window, float* y, std::uint16_t* argmax) {
  constexpr __mmask16 kAll = 0xffff;
  Index c = 0;
  for (; c + 4 * kLanes <= window.channels; c += 4 * kLanes) pool_lanes<4>(window, c, kAll, y, argmax);
  for (; c + kLanes <= window.channels; c += kLanes) pool_lanes<1>(window, c, kAll, y, argmax);
  if (c < window.channels) pool_lanes<1>(window, c, lanes_of(window.channels - c), y, argmax);
}

template <int kVectors> LOCKSTEP_INLINE_AVX512 void take_lanes(const PoolCover& cover, Index channel, __mmask16 mask,
                                                               bool accumulate, float* x_grad) {
  __m512 sums[kVectors];
  for (int v = 0; v < kVectors; ++v) sums[v] = _mm512_setzero_ps();
  if (accumulate)
    for (int v = 0; v < kVectors; ++v)
      sums[v] = _mm512_maskz_loadu_ps(v + 1 < kVectors ? static_cast<__mmask16>(0xffff) : mask,
                                      x_grad + channel + v * kLanes);
  for (Index i = 0; i < cover.rows; ++i)
    for (Index j = 0; j < cover.columns; ++j) {
      const Index at = i * cover.row_step + j * cover.channels + channel;
      const int place = cover.place - static_cast<int>(i) * cover.place_row - static_cast<int>(j) * cover.place_column;
      const __m256i here = _mm256_set1_epi16(static_cast<short>(place));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const __mmask16 lanes = v + 1 < kVectors ? static_cast<__mmask16>(0xffff) : mask;
        const __m256i places = _mm256_maskz_loadu_epi16(lanes, cover.argmax + at + v * kLanes);
        const __mmask16 won = _mm256_mask_cmpeq_epi16_mask(lanes, places, here);
        sums[v] =
            _mm512_mask_add_ps(sums[v], won, sums[v], _mm512_maskz_loadu_ps(lanes, cover.y_grad + at + v * kLanes));
      }
    }
  for (int v = 0; v < kVectors; ++v)
    _mm512_mask_storeu_ps(x_grad + channel + v * kLanes, v + 1 < kVectors ? static_cast<__mmask16>(0xffff) : mask,
                          sums[v]);
}

// x_grad = or += the gradients of the windows in which the channels of one input pixel are the maximum.
LOCKSTEP_TARGET_AVX512 inline void take_pixel(const PoolCover& cover, bool accumulate, float* x_grad) {
  constexpr __mmask16 kAll = 0xffff;
  Index c = 0;
  for (; c + 4 * kLanes <= cover.channels; c += 4 * kLanes) take_lanes<4>(cover, c, kAll, accumulate, x_grad);
  for (; c + kLanes <= cover.channels; c += kLanes) take_lanes<1>(cover, c, kAll, accumulate, x_grad);
  if (c < cover.channels) take_lanes<1>(cover, c, lanes_of(cover.channels - c), accumulate, x_grad);
}

}  // namespace lockstep::avx512

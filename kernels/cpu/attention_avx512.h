// The steps of fused_attention.cpp between its products, on vectors of 16 scores.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/product_avx512.h"
#include "kernels/cpu/transpose_avx512.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fused_attention {

using Index = std::int64_t;
using avx512::kLanes;
using avx512::lanes_of;

constexpr __mmask16 kAllLanes = 0xffff;

constexpr Index vectors_of(Index count) { return (count + kLanes - 1) / kLanes; }

// Combines all lanes. (GCC 12's own reductions cause warnings about undefined operands.)
template <typename Combine> LOCKSTEP_INLINE_AVX512 float combined(__m512 x, Combine combine) {
  x = combine(x, _mm512_maskz_shuffle_f32x4(kAllLanes, x, x, 0x4e));
  x = combine(x, _mm512_maskz_shuffle_f32x4(kAllLanes, x, x, 0xb1));
  x = combine(x, _mm512_maskz_permute_ps(kAllLanes, x, 0x4e));
  return _mm512_cvtss_f32(combine(x, _mm512_maskz_permute_ps(kAllLanes, x, 0xb1)));
}
struct Larger {
  LOCKSTEP_INLINE_AVX512 __m512 operator()(__m512 a, __m512 b) const { return _mm512_maskz_max_ps(kAllLanes, a, b); }
};
struct Sum {
  LOCKSTEP_INLINE_AVX512 __m512 operator()(__m512 a, __m512 b) const { return a + b; }
};

// e^x to 2 units in the last place, 0 for x <= -104; NaN stays NaN. The polynomial is that of vector_math.h.
LOCKSTEP_INLINE_AVX512 __m512 exponential(__m512 x) {
  // If an operand is NaN, the instruction returns the second one.
  x = _mm512_maskz_max_ps(kAllLanes, _mm512_set1_ps(-104.0F), x);
  const __m512 n = _mm512_maskz_roundscale_ps(kAllLanes, x * 1.44269504088896341F, _MM_FROUND_TO_NEAREST_INT);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375F), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4F), r);
  const __m512 square = r * r;
  const __m512 p01 = _mm512_fmadd_ps(_mm512_set1_ps(1.6666520088e-1F), r, _mm512_set1_ps(4.99999934105e-1F));
  const __m512 p23 = _mm512_fmadd_ps(_mm512_set1_ps(8.36878225034e-3F), r, _mm512_set1_ps(4.16683946205e-2F));
  const __m512 p = _mm512_fmadd_ps(_mm512_fmadd_ps(_mm512_set1_ps(1.38144474311e-3F), square, p23), square, p01);
  return _mm512_maskz_scalef_ps(kAllLanes, _mm512_fmadd_ps(p, square, r) + 1.0F, n);
}

// The state of the online softmax of one row.
struct RowState {
  float largest = -std::numeric_limits<float>::infinity(), sum = 0;
};

// Takes the next tile's scores, not yet scaled. They become exp(scale * score - largest), and 0 after the first `seen`,
// up to the end of the last of `vectors`. Returns the factor by which earlier sums must be multiplied.
LOCKSTEP_TARGET_AVX512 inline float online_softmax_row(float* scores, Index seen, Index vectors, float scale,
                                                       RowState& row) {
  const __m512 factor = _mm512_set1_ps(scale);
  __m512 most = _mm512_set1_ps(row.largest), sums = _mm512_setzero_ps();
  for (Index at = 0; at < seen; at += kLanes)
    most = _mm512_mask_max_ps(most, lanes_of(seen - at), _mm512_loadu_ps(scores + at) * factor, most);
  const float largest = combined(most, Larger{});
  const __m512 shift = _mm512_set1_ps(largest);
  for (Index at = 0; at < vectors * kLanes; at += kLanes) {
    const __m512 value = exponential(_mm512_fmsub_ps(_mm512_loadu_ps(scores + at), factor, shift));
    const __m512 visible = _mm512_maskz_mov_ps(lanes_of(seen - at), value);
    _mm512_storeu_ps(scores + at, visible);
    sums = sums + visible;
  }
  const float before = std::exp(row.largest - largest);
  row = {largest, row.sum * before + combined(sums, Sum{})};
  return before;
}

// Scores, not yet scaled, become probabilities exp(scale * score - log_sum). Their gradients become those of the
// unscaled scores: probability * (gradient - delta) * scale. Both are 0 after the first `seen`, up to the end of the
// last of `vectors`.
LOCKSTEP_TARGET_AVX512 inline void score_gradients_row(float* scores, float* grads, Index seen, Index vectors,
                                                       float scale, float log_sum, float delta) {
  const __m512 factor = _mm512_set1_ps(scale), shift = _mm512_set1_ps(log_sum), offset = _mm512_set1_ps(delta);
  Index at = 0;
  for (; at < vectors * kLanes; at += kLanes) {
    const __mmask16 mask = lanes_of(seen - at);
    const __m512 p = exponential(_mm512_fmsub_ps(_mm512_loadu_ps(scores + at), factor, shift));
    const __m512 grad = p * (_mm512_loadu_ps(grads + at) - offset) * factor;
    _mm512_storeu_ps(scores + at, _mm512_maskz_mov_ps(mask, p));
    _mm512_storeu_ps(grads + at, _mm512_maskz_mov_ps(mask, grad));
  }
  _mm512_storeu_ps(scores + at, _mm512_setzero_ps());
  _mm512_storeu_ps(grads + at, _mm512_setzero_ps());
}

// Copies rows of `width` floats and fills their last vector with zeros.
LOCKSTEP_TARGET_AVX512 inline void copy_rows(const float* from, Index from_row, Index rows, Index width, float* to) {
  for (Index row = 0; row < rows; ++row, from += from_row)
    for (Index c = 0; c < width; c += kLanes, to += kLanes)
      _mm512_storeu_ps(to, _mm512_maskz_loadu_ps(lanes_of(width - c), from + c));
}

// The reverse, times a factor: rows of `width` floats that begin `from_row` apart.
LOCKSTEP_TARGET_AVX512 inline void store_row(const float* from, float factor, Index width, bool accumulate, float* to) {
  for (Index c = 0; c < width; c += kLanes) {
    const __mmask16 mask = lanes_of(width - c);
    __m512 value = _mm512_loadu_ps(from + c) * factor;
    if (accumulate) value = value + _mm512_maskz_loadu_ps(mask, to + c);
    _mm512_mask_storeu_ps(to + c, mask, value);
  }
}

// Transposes rows of keys to panels (width, 64) of 64 keys; the last one is filled up with zeros.
LOCKSTEP_TARGET_AVX512 inline void transpose_keys(const float* from, Index from_row, Index keys, Index width,
                                                  float* to) {
  constexpr Index kPanel = 4 * kLanes;
  for (Index key = 0; key < keys; key += kPanel, to += kPanel * width) {
    const Index count = std::min(kPanel, keys - key);
    if (count < kPanel) std::fill_n(to, kPanel * width, 0.0F);
    avx512::transpose(from + key * from_row, from_row, to, kPanel, width, count);
  }
}

}  // namespace lockstep::fused_attention

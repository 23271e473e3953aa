#include "kernels/cpu/batch_linear.h"

#include <algorithm>

#include "lockstep/core/error.h"
#include "src/core/compute_threads.h"

#if defined(__x86_64__)
#include "kernels/cpu/product_avx512.h"
#endif

namespace lockstep::batch_linear {

#if defined(__x86_64__)

namespace {

using avx512::kLanes;
using Index = std::int64_t;

constexpr Index kRows = 48;  // of output features, at least, in a thread
constexpr Index kPanel = 4 * kLanes;

float* floats(const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }

LOCKSTEP_INLINE_AVX512 __m512 finished(__m512 value, __m512 bias, bool relu) {
  value = value + bias;
  if (!relu) return value;
  const __mmask16 negative = _mm512_cmp_ps_mask(value, _mm512_setzero_ps(), _CMP_LT_OQ);  // NaN is not, and passes
  return _mm512_mask_mov_ps(value, negative, _mm512_setzero_ps());
}

// y (batch, outs) = from (outs, batch) transposed, plus bias, clamped.
LOCKSTEP_TARGET_AVX512 void finish_transposed(const LinearShape& s, const float* from, const float* bias, bool relu, float* y) {
  Index o = 0;
  for (; o + kLanes <= s.out_features; o += kLanes)
    for (Index n = 0; n < s.batch; n += kLanes) {
      __m512 square[kLanes];
      for (Index i = 0; i < kLanes; ++i)
        square[i] = finished(_mm512_loadu_ps(from + (o + i) * s.batch + n), _mm512_set1_ps(bias == nullptr ? 0 : bias[o + i]), relu);
      avx512::transpose_square(square);
      for (Index i = 0; i < kLanes; ++i) _mm512_storeu_ps(y + (n + i) * s.out_features + o, square[i]);
    }
  for (; o < s.out_features; ++o)
    for (Index n = 0; n < s.batch; ++n) {
      const float value = from[o * s.batch + n] + (bias == nullptr ? 0 : bias[o]);
      y[n * s.out_features + o] = relu && value < 0 ? 0 : value;
    }
}

// 64 columns of y, its rows `row` apart.
LOCKSTEP_TARGET_AVX512 void finish_panel(const float* bias, bool relu, Index rows, Index row, float* y) {
  for (Index n = 0; n < rows; ++n, y += row)
    for (Index o = 0; o < kPanel; o += kLanes) {
      const __m512 offset = bias == nullptr ? _mm512_setzero_ps() : _mm512_loadu_ps(bias + o);
      _mm512_storeu_ps(y + o, finished(_mm512_loadu_ps(y + o), offset, relu));
    }
}

// y^T = weight * x^T: threads share the output features.
void by_rows_of_weights(const LinearShape& s, const float* x, const float* weight, const float* bias, bool relu, float* y) {
  const Buffer columns = cpu_device().allocate(s.batch * s.in_features * sizeof(float));
  const Buffer result = cpu_device().allocate(s.batch * s.out_features * sizeof(float));
  const Index panel = kPanel * s.in_features;
  for (Index n = 0; n < s.batch; n += kPanel)
    avx512::transpose(x + n * s.in_features, s.in_features, floats(columns) + n / kPanel * panel, kPanel, s.in_features, kPanel);
  const Index parts = std::min<Index>((s.out_features + kRows - 1) / kRows, compute_threads());
  in_parallel(parts, [&](Index part) {
    const Index begin = s.out_features * part / parts, end = s.out_features * (part + 1) / parts;
    for (Index n = 0; n < s.batch; n += kPanel)
      avx512::multiply_panel(end - begin, s.in_features, weight + begin * s.in_features, s.in_features,
                             floats(columns) + n / kPanel * panel, floats(result) + begin * s.batch + n, s.batch, false);
  });
  finish_transposed(s, floats(result), bias, relu, y);
}

// y = x * weight^T: threads share the panels of 64 output features.
void by_rows_of_x(const LinearShape& s, const float* x, const float* weight, const float* bias, bool relu, float* y) {
  const Index panels = s.out_features / kPanel, parts = std::min<Index>(panels, compute_threads());
  in_parallel(parts, [&](Index part) {
    const Buffer panel = cpu_device().allocate(kPanel * s.in_features * sizeof(float));
    for (Index o = panels * part / parts * kPanel; o < panels * (part + 1) / parts * kPanel; o += kPanel) {
      avx512::transpose(weight + o * s.in_features, s.in_features, floats(panel), kPanel, s.in_features, kPanel);
      avx512::multiply_panel(s.batch, s.in_features, x, s.in_features, floats(panel), y + o, s.out_features, false);
      if (bias != nullptr || relu) finish_panel(bias == nullptr ? nullptr : bias + o, relu, s.batch, s.out_features, y + o);
    }
  });
}

bool has_more_rows_of_x(const LinearShape& s) { return s.out_features % kPanel == 0 && s.batch >= s.out_features; }

}  // namespace

bool suits(const LinearShape& s) {
  return cpu_isa() == Isa::kAvx512 && s.batch > 0 && s.in_features > 0 && s.out_features > 0 &&
         (s.batch % kPanel == 0 || has_more_rows_of_x(s));
}

void linear(const LinearShape& s, const float* x, const float* weight, const float* bias, bool relu, float* y) {
  const auto compute = has_more_rows_of_x(s) ? by_rows_of_x : by_rows_of_weights;
  compute(s, x, weight, bias, relu, y);
}

#else

bool suits(const LinearShape&) { return false; }

void linear(const LinearShape&, const float*, const float*, const float*, bool, float*) { LOCKSTEP_CHECK(false, "no AVX-512 here"); }

#endif

}  // namespace lockstep::batch_linear

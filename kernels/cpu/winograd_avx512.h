// The arithmetic of winograd.cpp, on vectors of 16 channels. All transforms share the points 0, 1, -1, 2, -2, infinity; the
// factors that make the input's transform whole (4, 6, 6, 24, 24, 1) are divided out where the weights pass.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/product_avx512.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::winograd {

using Index = std::int64_t;
using avx512::kLanes;

constexpr Index kPoints = 6;  // a direction; a tile has 36
constexpr Index kOut = 2;     // outputs of a tile, a direction
constexpr Index kKernel = 5;

// Six inputs to the six points.
LOCKSTEP_INLINE_AVX512 void transform_input(const __m512* d, Index step, __m512* out, Index out_step) {
  const __m512 a = 4 * d[2 * step] - d[4 * step], b = 4 * d[step] - d[3 * step];
  const __m512 c = d[4 * step] - d[2 * step], e = 2 * (d[3 * step] - d[step]);
  out[0] = 4 * d[0] - 5 * d[2 * step] + d[4 * step];
  out[out_step] = a + b;
  out[2 * out_step] = a - b;
  out[3 * out_step] = c + e;
  out[4 * out_step] = c - e;
  out[5 * out_step] = 4 * d[step] - 5 * d[3 * step] + d[5 * step];
}

// The values of the polynomial with coefficients g at the points, over the factors: five weights.
LOCKSTEP_INLINE_AVX512 void transform_kernel(const __m512* g, Index step, __m512* out, Index out_step) {
  const __m512 even_1 = g[0] + g[2 * step] + g[4 * step], odd_1 = g[step] + g[3 * step];
  const __m512 even_2 = g[0] + 4 * g[2 * step] + 16 * g[4 * step], odd_2 = 2 * g[step] + 8 * g[3 * step];
  out[0] = g[0] * (1.0F / 4);
  out[out_step] = (even_1 + odd_1) * (1.0F / 6);
  out[2 * out_step] = (even_1 - odd_1) * (1.0F / 6);
  out[3 * out_step] = (even_2 + odd_2) * (1.0F / 24);
  out[4 * out_step] = (even_2 - odd_2) * (1.0F / 24);
  out[5 * out_step] = g[4 * step];
}

// The same for two gradients, the factors left to gather_kernel().
LOCKSTEP_INLINE_AVX512 void transform_gradient(const __m512* g, Index step, __m512* out, Index out_step) {
  const __m512 twice = 2 * g[step];
  out[0] = g[0];
  out[out_step] = g[0] + g[step];
  out[2 * out_step] = g[0] - g[step];
  out[3 * out_step] = g[0] + twice;
  out[4 * out_step] = g[0] - twice;
  out[5 * out_step] = g[step];
}

// The points back to two outputs.
LOCKSTEP_INLINE_AVX512 void gather_output(const __m512* m, Index step, __m512* out, Index out_step) {
  out[0] = m[0] + (m[step] + m[2 * step]) + (m[3 * step] + m[4 * step]);
  out[out_step] = (m[step] - m[2 * step]) + 2 * (m[3 * step] - m[4 * step]) + m[5 * step];
}

// The points back to five weight gradients.
LOCKSTEP_INLINE_AVX512 void gather_kernel(const __m512* m, Index step, __m512* out, Index out_step) {
  const __m512 sum_1 = (m[step] + m[2 * step]) * (1.0F / 6), difference_1 = (m[step] - m[2 * step]) * (1.0F / 6);
  const __m512 sum_2 = (m[3 * step] + m[4 * step]) * (1.0F / 24), difference_2 = (m[3 * step] - m[4 * step]) * (1.0F / 24);
  out[0] = m[0] * (1.0F / 4) + sum_1 + sum_2;
  out[out_step] = difference_1 + 2 * difference_2;
  out[2 * out_step] = sum_1 + 4 * sum_2;
  out[3 * out_step] = difference_1 + 8 * difference_2;
  out[4 * out_step] = sum_1 + 16 * sum_2 + m[5 * step];
}

}  // namespace lockstep::winograd

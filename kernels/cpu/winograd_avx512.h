// The arithmetic of winograd.cpp, on vectors of 16 channels, in one direction. A tile's values are coefficients of
// polynomials, and all transforms share the points 0, p and -p for each p of kPairs, and infinity: sums over even and
// over odd powers serve two points each. The divisors of Lagrange's interpolation would make the inputs' transform
// fractions, so they are applied to the weights.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/product_avx512.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::winograd {

using Index = std::int64_t;
using avx512::kLanes;

inline constexpr float kPairs[] = {1, 2, 0.5F};

// kPoints points, two of which are 0 and infinity.
template <Index kPoints> struct Points {
  static constexpr Index kPairCount = kPoints / 2 - 1;
  static_assert(kPoints % 2 == 0 && kPairCount <= 3, "more pairs");

  // The product of x^2 - q^2 over all pairs q except one (-1: over all), as coefficients of powers of x^2, the lowest
  // first.
  struct PairProduct {
    float of[kPairCount + 1];
  };
  static constexpr PairProduct product_without(Index left_out) {
    PairProduct product{{1}};
    Index degree = 0;
    for (Index pair = 0; pair < kPairCount; ++pair) {
      if (pair == left_out) continue;
      const float square = kPairs[pair] * kPairs[pair];
      product.of[++degree] = 0;
      for (Index k = degree; k > 0; --k) product.of[k] = product.of[k - 1] - square * product.of[k];
      product.of[0] *= -square;
    }
    return product;
  }
  struct Products {
    PairProduct all, without[kPairCount];
    // 1 / (the product of the differences from the other points). The factor of infinity is 1.
    float zero_factor, pair_factor[kPairCount];
  };
  static constexpr Products make_products() {
    Products products{};
    products.all = product_without(-1);
    products.zero_factor = 1 / products.all.of[0];
    for (Index pair = 0; pair < kPairCount; ++pair) {
      const float square = kPairs[pair] * kPairs[pair];
      products.without[pair] = product_without(pair);
      float value = 0;
      for (Index k = kPairCount; k > 0; --k) value = value * square + products.without[pair].of[k - 1];
      products.pair_factor[pair] = 1 / (2 * square * value);
    }
    return products;
  }
  static constexpr Products kProducts = make_products();
};

// sum + factor * x. Factors are known at compile time; 0 and 1 cost no product.
LOCKSTEP_INLINE_AVX512 __m512 add_scaled(__m512 sum, float factor, __m512 x) {
  return factor == 0    ? sum
         : factor == 1  ? sum + x
         : factor == -1 ? sum - x
                        : _mm512_fmadd_ps(_mm512_set1_ps(factor), x, sum);
}
LOCKSTEP_INLINE_AVX512 __m512 scaled(float factor, __m512 x) { return factor == 1 ? x : factor * x; }

// The sum of x[k * step] times the first `count` coefficients; the highest coefficient is 1.
template <typename Polynomial>
LOCKSTEP_INLINE_AVX512 __m512 weighted_sum(const Polynomial& product, Index count, const __m512* x, Index step) {
  __m512 sum = x[(count - 1) * step];
#pragma GCC unroll 4
  for (Index k = count - 2; k >= 0; --k) sum = add_scaled(sum, product.of[k], x[k * step]);
  return sum;
}

// Transforms kPoints inputs to the points.
template <Index kPoints> struct InputTransform {
  static LOCKSTEP_INLINE_AVX512 void apply(const __m512* d, Index step, __m512* out) {
    constexpr Index kPairCount = Points<kPoints>::kPairCount;
    constexpr auto kProducts = Points<kPoints>::kProducts;
    out[0] = weighted_sum(kProducts.all, kPairCount + 1, d, 2 * step);
    out[kPoints - 1] = weighted_sum(kProducts.all, kPairCount + 1, d + step, 2 * step);
#pragma GCC unroll 3
    for (Index pair = 0; pair < kPairCount; ++pair) {
      const __m512 even = weighted_sum(kProducts.without[pair], kPairCount, d + 2 * step, 2 * step);
      const __m512 odd = weighted_sum(kProducts.without[pair], kPairCount, d + step, 2 * step);
      out[1 + 2 * pair] = add_scaled(even, kPairs[pair], odd);
      out[2 + 2 * pair] = add_scaled(even, -kPairs[pair], odd);
    }
  }
};

// The values at the points of the polynomial with kCount coefficients g; kDivided: divided by the divisors.
template <Index kPoints, Index kCount, bool kDivided> struct Evaluation {
  static LOCKSTEP_INLINE_AVX512 void apply(const __m512* g, Index step, __m512* out) {
    constexpr auto kProducts = Points<kPoints>::kProducts;
    out[0] = scaled(kDivided ? kProducts.zero_factor : 1, g[0]);
    out[kPoints - 1] = g[(kCount - 1) * step];
#pragma GCC unroll 3
    for (Index pair = 0; pair < Points<kPoints>::kPairCount; ++pair) {
      const float p = kPairs[pair];
      float power = kDivided ? kProducts.pair_factor[pair] : 1;
      __m512 even = scaled(power, g[0]), odd = scaled(power * p, g[step]);
#pragma GCC unroll 4
      for (Index k = 2; k < kCount; ++k) {
        if (k % 2 == 0) power *= p * p;
        __m512& sum = k % 2 == 0 ? even : odd;
        sum = add_scaled(sum, k % 2 == 0 ? power : power * p, g[k * step]);
      }
      out[1 + 2 * pair] = even + odd;
      out[2 + 2 * pair] = even - odd;
    }
  }
};

// The transpose: from values at the points to kCount sums of the values times the points' powers 0, 1, ...
template <Index kPoints, Index kCount, bool kDivided> struct Gathering {
  static LOCKSTEP_INLINE_AVX512 void apply(const __m512* m, Index step, __m512* out) {
    constexpr auto kProducts = Points<kPoints>::kProducts;
    out[0] = scaled(kDivided ? kProducts.zero_factor : 1, m[0]);
#pragma GCC unroll 3
    for (Index pair = 0; pair < Points<kPoints>::kPairCount; ++pair) {
      const __m512 plus = m[(1 + 2 * pair) * step], minus = m[(2 + 2 * pair) * step];
      const __m512 even = plus + minus, odd = plus - minus;
      float power = kDivided ? kProducts.pair_factor[pair] : 1;
#pragma GCC unroll 5
      for (Index k = 0; k < kCount; ++k, power *= kPairs[pair]) {
        const __m512 each = k % 2 == 0 ? even : odd;
        out[k] = k > 0 && pair == 0 ? scaled(power, each) : add_scaled(out[k], power, each);
      }
    }
    out[kCount - 1] = out[kCount - 1] + m[(kPoints - 1) * step];
  }
};

}  // namespace lockstep::winograd

// The points of Winograd's filtering. A tile's values are coefficients of polynomials, and all transforms share the
// points 0, p and -p for each p of kPairs, and infinity: sums over even and over odd powers serve two points each. The
// divisors of Lagrange's interpolation would make the inputs' transform fractions, so they are applied to the weights.
#pragma once

#include <cstdint>

namespace lockstep::winograd {

using Index = std::int64_t;

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

}  // namespace lockstep::winograd

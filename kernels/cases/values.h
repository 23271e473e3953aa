// Values of the arrays on which kernels are tested.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace lockstep::testing {

using Index = std::int64_t;
using Floats = std::vector<float>;

// In [-1, 1). Large arrays, which benchmarks use, repeat their first 2^20 values.
inline Floats uniform(Index count, unsigned seed) {
  constexpr Index kDrawn = 1 << 20;
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> distribution(-1, 1);
  Floats values(static_cast<std::size_t>(count));
  std::generate_n(values.begin(), std::min(count, kDrawn), [&] { return distribution(random); });
  for (Index at = kDrawn; at < count; at += kDrawn)
    std::copy_n(values.begin(), std::min(count - at, kDrawn), values.begin() + at);
  return values;
}

// -3 .. 3. They are often equal, which tests maxima; products, and sums of a few thousand of them, are exact in float
// in any order.
inline Floats whole_numbers(Index count, unsigned seed) {
  std::mt19937 random(seed);
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(static_cast<int>(random() % 7) - 3);
  return values;
}

}  // namespace lockstep::testing

// What the kernel tests share: data whose sums are exact, and comparisons of a device's kernels with the plain ones.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "lockstep/core/device.h"

namespace lockstep::testing {

using Index = std::int64_t;
using Floats = std::vector<float>;

// -3 .. 3: products and sums of a few thousand of them are exact in float, in whatever order they are added.
inline Floats whole_numbers(Index count, unsigned seed) {
  std::mt19937 random(seed);
  Floats values(count);
  for (float& value : values) value = static_cast<float>(static_cast<int>(random() % 7) - 3);
  return values;
}

inline Floats uniform(Index count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> distribution(-1, 1);
  Floats values(count);
  for (float& value : values) value = distribution(random);
  return values;
}

inline void expect_same_bits(const Floats& actual, const Floats& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    // Zeros of either sign are the same sum; everything else must be the same bits.
    if (actual[i] == 0 && expected[i] == 0) continue;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(actual[i]), std::bit_cast<std::uint32_t>(expected[i]))
        << what << ": element " << i << " is " << actual[i] << ", expected " << expected[i];
  }
}

// Within `tolerance` of the largest expected value.
inline void expect_close(const Floats& actual, const Floats& expected, float tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  float largest = 1e-6F;
  for (const float value : expected) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], tolerance * largest) << what << ": element " << i;
}

inline const KernelTable& plain() { return reference_kernels(); }
inline const KernelTable& tested() { return cpu_device().kernels(); }
inline Stream& stream() { return cpu_device().default_stream(); }

}  // namespace lockstep::testing

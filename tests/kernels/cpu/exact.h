// Common parts of the kernel tests: data whose sums are exact, and comparisons of a device's kernels with the plain
// ones.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cases/values.h"
#include "lockstep/core/device.h"

namespace lockstep::testing {

// Views of entire arrays.
inline InputView in(const Floats& values, const Shape& shape) { return {values.data(), shape}; }
inline InputView in(const Floats& values) { return in(values, {static_cast<Index>(values.size())}); }
inline OutputView out(Floats& values, const Shape& shape, bool accumulate = false) {
  return {values.data(), shape, accumulate};
}
inline OutputView out(Floats& values) { return out(values, {static_cast<Index>(values.size())}); }

inline void expect_same_bits(const Floats& actual, const Floats& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    // Zeros of either sign count as equal; everything else must have the same bits.
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
  for (std::size_t i = 0; i < actual.size(); ++i)
    ASSERT_NEAR(actual[i], expected[i], tolerance * largest) << what << ": element " << i;
}

inline const KernelTable& plain() { return reference_kernels(); }
inline const KernelTable& tested() { return cpu_device().kernels(); }
inline Stream& stream() { return cpu_device().default_stream(); }

}  // namespace lockstep::testing

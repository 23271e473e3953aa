// Magnitudes of floats as bits, and the digits by which the k-th largest of them is found.
#pragma once

#include <cstdint>

#include "lockstep/core/host_device.h"

namespace lockstep {

// Ordered as the numbers are: NaN is above infinity, which is above all numbers.
LOCKSTEP_HOST_DEVICE inline std::uint32_t magnitude_bits(float value) {
  return __builtin_bit_cast(std::uint32_t, value) & 0x7fffffffU;
}

// A digit of a magnitude, which has 31 bits: `bits` bits from bit `shift` on.
struct MagnitudeDigit {
  int shift, bits;
};
inline constexpr MagnitudeDigit kMagnitudeDigits[] = {{20, 11}, {10, 10}, {0, 10}};
inline constexpr int kMostMagnitudeBins = 2048;

}  // namespace lockstep

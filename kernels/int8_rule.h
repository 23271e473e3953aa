// The conversion between floats and the int8 comm hook's numbers (reduce/compression_kernels.h).
#pragma once

#include <cstdint>

#include "kernels/magnitude.h"

namespace lockstep {

struct Int8Scale {
  float scale;   // value of the number 1; NaN: the block has a value that is not finite
  float factor;  // factor by which values are multiplied
  bool is_finite;
};

LOCKSTEP_HOST_DEVICE inline Int8Scale int8_scale(std::uint32_t largest_magnitude) {
  constexpr float kLargest = 127, kSmallest = 1e-36F;  // below kSmallest, 127 / it would overflow
  constexpr std::uint32_t kInfinity = 0x7f800000U, kNaN = 0x7fc00000U;
  if (largest_magnitude >= kInfinity) return {__builtin_bit_cast(float, kNaN), 0, false};
  const float largest = __builtin_bit_cast(float, largest_magnitude);
  if (largest < kSmallest) return {0, 0, true};
  return {largest / kLargest, kLargest / largest, true};
}

// For a block of finite values. Rounds to nearest, ties to even: 1.5 * 2^23 + x has the integer in its last bits.
LOCKSTEP_HOST_DEVICE inline std::int8_t nearest_int8(float value, float factor) {
  return static_cast<std::int8_t>(__builtin_bit_cast(std::uint32_t, value * factor + 12582912.0F) - 0x4b400000U);
}
// For a block with other values: zeros stay zero, because padding must.
LOCKSTEP_HOST_DEVICE inline std::int8_t marked_int8(float value) { return value != 0 ? 1 : 0; }

// sum + scale * number; if the scale is NaN, marked elements become NaN.
LOCKSTEP_HOST_DEVICE inline float add_int8(float sum, float scale, std::int8_t number) {
  return scale == scale ? sum + scale * static_cast<float>(number) : number != 0 ? scale : sum;
}

}  // namespace lockstep

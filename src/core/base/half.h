// float16 (IEEE binary16) and bfloat16 <-> float, in integer steps that compilers turn into vector code.
//
// Rounding is to nearest, ties to even. There are instructions for this, but not on every CPU that a job may include,
// and all ranks must compute the same bits.
#pragma once

#include <bit>
#include <cstdint>

#if defined(__GNUC__)
#define LOCKSTEP_HALF_INLINE __attribute__((always_inline)) inline
#else
#define LOCKSTEP_HALF_INLINE inline
#endif

namespace lockstep {

struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

LOCKSTEP_HALF_INLINE float widen(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

LOCKSTEP_HALF_INLINE BFloat16 narrow_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x40;
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  return {static_cast<std::uint16_t>(is_nan ? quiet_nan : rounded)};
}

// The biases of the exponents differ by 112: a multiplication by 2^112 corrects that, and normalises subnormal numbers.
LOCKSTEP_HALF_INLINE float widen(Float16 value) {
  const std::uint32_t magnitude = static_cast<std::uint32_t>(value.bits & 0x7fff) << 13;
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000) << 16;
  const auto finite = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  const std::uint32_t special = magnitude | 0x7f800000;  // infinity and NaN
  return std::bit_cast<float>(sign | (magnitude >= 0x0f800000 ? special : finite));
}

LOCKSTEP_HALF_INLINE Float16 narrow_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000;
  const std::uint32_t magnitude = bits & 0x7fffffff;
  // Normal result: correct the bias and round at bit 13; a carry into the exponent is the correct result of rounding
  // up.
  const std::uint32_t normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Subnormal result (below 2^-14): adding 0.5 leaves the number, rounded to multiples of 2^-24, in the low bits.
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
  const std::uint32_t nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  std::uint32_t result = magnitude < 0x38800000 ? subnormal : normal;
  result = magnitude >= 0x477ff000 ? 0x7c00 : result;  // 65520 and above round to infinity
  result = magnitude > 0x7f800000 ? nan : result;
  return {static_cast<std::uint16_t>(sign | result)};
}

}  // namespace lockstep

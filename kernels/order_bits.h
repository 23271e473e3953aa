// The order in which sort() puts floats, as unsigned numbers.
#pragma once

#include <cstdint>

#include "kernels/always_inline.h"

namespace lockstep {

// Smaller for floats that come first. NaN is larger than all numbers, and all NaN are equal, as are 0 and -0.
LOCKSTEP_FORMULA std::uint32_t order_bits(float value, bool descending) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value), sign = 0U - (bits >> 31U);
  const std::uint32_t of_number = value == 0 ? 0x80000000U : bits ^ (sign | 0x80000000U);
  const std::uint32_t ascending = value != value ? 0xffffffffU : of_number;
  return descending ? ~ascending : ascending;
}

// The same, and among equal elements by position, which is below 2^32.
LOCKSTEP_FORMULA std::uint64_t order_of(float value, bool descending, std::int64_t place) {
  return static_cast<std::uint64_t>(order_bits(value, descending)) << 32U | static_cast<std::uint64_t>(place);
}

}  // namespace lockstep

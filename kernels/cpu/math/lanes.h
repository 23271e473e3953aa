// Sixteen floats, whatever the instruction set: each build of a loop adds in the same order and so computes the same
// bits. They are passed by reference, because the way to pass such a vector by value depends on the instruction set.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/always_inline.h"

namespace lockstep::fast {

using Lanes = float __attribute__((vector_size(64)));
inline constexpr std::int64_t kLanes = 16;
// The number of vectors of sums that are kept in registers over all rows, next to as many shifts that are subtracted.
inline constexpr std::int64_t kColumnVectors = 4, kColumn = kColumnVectors * kLanes;

LOCKSTEP_ALWAYS_INLINE void load(const float* from, Lanes& lanes) { std::memcpy(&lanes, from, sizeof lanes); }
LOCKSTEP_ALWAYS_INLINE void save(const Lanes& lanes, float* to) { std::memcpy(to, &lanes, sizeof lanes); }
LOCKSTEP_ALWAYS_INLINE float sum_of(const Lanes& lanes) {
  float eight[8], four[4];
  for (int i = 0; i < 8; ++i) eight[i] = lanes[i] + lanes[i + 8];
  for (int i = 0; i < 4; ++i) four[i] = eight[i] + eight[i + 4];
  return (four[0] + four[2]) + (four[1] + four[3]);
}
LOCKSTEP_ALWAYS_INLINE float largest_of(const Lanes& lanes) {
  float eight[8], four[4];
  for (int i = 0; i < 8; ++i) eight[i] = lanes[i] > lanes[i + 8] ? lanes[i] : lanes[i + 8];
  for (int i = 0; i < 4; ++i) four[i] = eight[i] > eight[i + 4] ? eight[i] : eight[i + 4];
  const float even = four[0] > four[2] ? four[0] : four[2], odd = four[1] > four[3] ? four[1] : four[3];
  return even > odd ? even : odd;
}

}  // namespace lockstep::fast

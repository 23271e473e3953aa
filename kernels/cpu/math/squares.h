// Sums of squares in double, in an order that depends only on the number of elements.
#pragma once

#include <cstdint>

#include "kernels/always_inline.h"

namespace lockstep::fast {

inline constexpr std::int64_t kSquareSums = 16;

// sums[i % kSquareSums] += the square of element i. An array may be passed in pieces; all but the last have a multiple
// of kSquareSums elements.
LOCKSTEP_ALWAYS_INLINE void add_squares(const float* x, std::int64_t count, double* sums) {
  std::int64_t i = 0;
  for (; i + kSquareSums <= count; i += kSquareSums)
    for (std::int64_t lane = 0; lane < kSquareSums; ++lane) {
      const double value = x[i + lane];
      sums[lane] += value * value;
    }
  for (; i < count; ++i) sums[i % kSquareSums] += static_cast<double>(x[i]) * x[i];
}

LOCKSTEP_ALWAYS_INLINE double total_of(const double* sums) {
  double total = 0;
  for (std::int64_t lane = 0; lane < kSquareSums; ++lane) total += sums[lane];
  return total;
}

}  // namespace lockstep::fast

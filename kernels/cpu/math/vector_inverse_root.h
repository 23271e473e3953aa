// s^(-3/4) and s^(-1/2) of normal positive numbers for the CPU's vector loops, by the method of vector_math.h; square
// roots and divisions would take several times as long.
//   The exponent forms the upper bits of a float, so subtracting a quarter of the bits from a constant gives about
// s^(-1/4): this y is within 3.1 %. With e = 1 - s y^4, s^(-3/4) is y^3 (1 - e)^(-3/4), and (1 - e)^(-3/4) is
// approximated by a polynomial for |e| < 0.1236.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/cpu/math/vector_math.h"

namespace lockstep::vector_math {

struct RootGuess {
  float root, square, error;  // y, y^2, 1 - s y^4
};

LOCKSTEP_ALWAYS_INLINE RootGuess inverse_fourth_root(float s) {
  const auto y = std::bit_cast<float>(0x4f581800U - (std::bit_cast<std::uint32_t>(s) >> 2));
  const float square = y * y;
  return {y, square, fma(-(s * square), square, 1.0F)};
}

// Relative error at most 3e-7.
LOCKSTEP_ALWAYS_INLINE float inverse_three_quarters_power(float s) {
  const RootGuess guess = inverse_fourth_root(s);
  const float e = guess.error, e2 = e * e, cube = guess.square * guess.root;
  const float q01 = fma(0.656250282F, e, 0.750000195F), q23 = fma(0.563845855F, e, 0.601459758F),
              q45 = fma(0.527381264F, e, 0.549202829F);
  return fma(cube * e, fma(fma(q45, e2, q23), e2, q01), cube);
}

// Relative error at most 3e-7.
LOCKSTEP_ALWAYS_INLINE float inverse_square_root(float s) {
  const RootGuess guess = inverse_fourth_root(s);
  const float e = guess.error, e2 = e * e;
  const float q01 = fma(0.37500015F, e, 0.500000082F), q23 = fma(0.27338164F, e, 0.312456758F),
              q45 = fma(0.231620222F, e, 0.251764686F);
  return fma(guess.square * e, fma(fma(q45, e2, q23), e2, q01), guess.square);
}

}  // namespace lockstep::vector_math

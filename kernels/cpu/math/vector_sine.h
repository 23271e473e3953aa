// Sine and cosine for the CPU's vector loops, by the method of vector_math.h.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/cpu/math/vector_math.h"

namespace lockstep::vector_math {

// The largest magnitude whose remainder below takes three steps.
constexpr float kLargestAngle = 65536.0F;

// sin(x + quarters pi / 2) for |x| up to kLargestAngle, within 2.4e-7 of the value.
//   x = k pi / 2 + r with |r| <= pi / 4. pi / 2 is a sum of three floats; subtracting k times the first is exact.
LOCKSTEP_ALWAYS_INLINE float sine_after(float x, std::uint32_t quarters) {
  const float shifted = fma(x, 0.63661977236758134F, kRounder), k = shifted - kRounder;
  const float r = fma(k, 1.71512451e-15F, fma(k, 4.37113883e-8F, fma(k, -1.57079637F, x)));
  const float square = r * r;
  const float s = fma(fma(-1.9516655709e-4F, square, 8.3321735423e-3F), square, -1.6666654873e-1F);
  const float c = fma(fma(2.4437728243e-5F, square, -1.3887361432e-3F), square, 4.1666646747e-2F);
  const float sine = fma(s * square, r, r), cosine = fma(square * square, c, fma(-0.5F, square, 1.0F));
  const std::uint32_t quarter = std::bit_cast<std::uint32_t>(shifted) + quarters, is_odd = 0U - (quarter & 1U);
  const std::uint32_t magnitude =
      (std::bit_cast<std::uint32_t>(cosine) & is_odd) | (std::bit_cast<std::uint32_t>(sine) & ~is_odd);
  return std::bit_cast<float>(magnitude ^ ((quarter & 2U) << 30U));
}
LOCKSTEP_ALWAYS_INLINE float sin(float x) { return sine_after(x, 0); }
LOCKSTEP_ALWAYS_INLINE float cos(float x) { return sine_after(x, 1); }

}  // namespace lockstep::vector_math

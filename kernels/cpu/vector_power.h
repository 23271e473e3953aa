// Powers for the CPU's vector loops, of the kind and the source of vector_math.h.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/vector_math.h"

namespace lockstep::vector_math {

// What x^p is besides 2^(p log2 |x|), for a finite p other than 0: as C's pow() has it.
struct PowerRule {
  double exponent;
  float at_zero, at_infinity;
  float of_negative;   // a factor: NaN where p is no whole number
  std::uint32_t sign;  // the sign bit where p is odd
};

inline PowerRule power_rule(double exponent) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const bool is_whole = std::trunc(exponent) == exponent, is_odd = is_whole && std::fmod(exponent, 2) != 0;
  const bool is_positive = exponent > 0;
  return {exponent, is_positive ? 0 : kInfinity, is_positive ? kInfinity : 0, is_whole ? 1.0F : kNan, is_odd ? 0x80000000U : 0};
}

LOCKSTEP_VECTOR_MATH double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }

// Within 0.6 units in the last place, subnormal results included. In double, since log2's error is multiplied by p:
//   |x| = 2^e (1 + m) with sqrt(1/2) <= 1 + m < sqrt(2); log2(1 + m) = 2 artanh(s) / ln 2 with s = m / (m + 2); then 2^n 2^f, |f| <= 1/2.
LOCKSTEP_VECTOR_MATH float power(float x, const PowerRule& rule) {
  constexpr float kSmallestNormal = 1.17549435e-38F, kInfinity = std::numeric_limits<float>::infinity();
  constexpr double kDoubleRounder = 6755399441055744.0;  // 1.5 * 2^52
  const float magnitude = abs(x);
  const bool is_subnormal = magnitude < kSmallestNormal;
  const auto bits = std::bit_cast<std::uint32_t>(is_subnormal ? magnitude * 8388608.0F : magnitude);  // 2^23
  const std::uint32_t offset = bits - 0x3f3504f3U;
  const std::int32_t e = (static_cast<std::int32_t>(offset) >> 23) - (is_subnormal ? 23 : 0);
  const auto m = static_cast<double>(std::bit_cast<float>((offset & 0x007fffffU) + 0x3f3504f3U) - 1.0F);
  const double s = m / (m + 2.0), u = s * s, u2 = u * u;
  const double l01 = fma(0.96179667334377164, u, 2.8853900817900845), l23 = fma(0.41167274004693022, u, 0.57708358460243482);
  const double l = fma(fma(0.3407297279081427, u2, l23), u2, l01);
  double product = rule.exponent * fma(s, l, static_cast<double>(e));
  product = product > 300.0 ? 300.0 : product;  // beyond a float's ends, within a double's
  product = product < -300.0 ? -300.0 : product;
  const double shifted = product + kDoubleRounder, f = product - (shifted - kDoubleRounder), f2 = f * f;
  const double e01 = fma(6.931471879266e-1, f, 1.0), e23 = fma(5.5503574339158e-2, f, 2.4022649794887e-1);
  const double e45 = fma(1.3390735365691e-3, f, 9.6182375871468e-3);
  const double of_f = fma(fma(fma(1.5403482782943863e-4, f2, e45), f2, e23), f2, e01);
  auto y = static_cast<float>(std::bit_cast<double>(std::bit_cast<std::uint64_t>(of_f) + (std::bit_cast<std::uint64_t>(shifted) << 52)));
  y = x < 0 ? y * rule.of_negative : y;
  y = magnitude == 0 ? rule.at_zero : y;
  y = magnitude == kInfinity ? rule.at_infinity : y;
  y = std::bit_cast<float>(std::bit_cast<std::uint32_t>(y) | (std::bit_cast<std::uint32_t>(x) & rule.sign));
  return magnitude <= kInfinity ? y : x;
}

// The same for any p, NaN and infinities too: 1 where x is 1 or p is 0, whatever the other is.
LOCKSTEP_VECTOR_MATH float power(float x, float p) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const float half = p * 0.5F;
  const bool is_whole = std::trunc(p) == p, is_odd = is_whole && std::trunc(half) != half;
  const PowerRule rule{p, p > 0 ? 0 : kInfinity, p > 0 ? kInfinity : 0, is_whole ? 1.0F : kNan, is_odd ? 0x80000000U : 0};
  float y = power(x, rule);
  y = abs(x) == 1.0F && abs(p) == kInfinity ? 1.0F : y;
  y = p == p ? y : p;
  return x == 1.0F || p == 0 ? 1.0F : y;
}

}  // namespace lockstep::vector_math

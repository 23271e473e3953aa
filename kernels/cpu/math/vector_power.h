// Powers for the CPU's vector loops, by the method of vector_math.h: x^p = 2^(p log2 x). The error of log2 is
// multiplied by p, so the logarithm and the product are sums of two floats, of which the second holds what rounding the
// first one lost (Dekker 1971).
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/math/vector_math.h"

namespace lockstep::vector_math {

// The largest float below 2^31. This exponent and all larger ones are even, and all their powers except those of 1 are
// 0 or infinite.
constexpr float kLargestExponent = 2147483520.0F;

struct TwoFloats {
  float high, low;
};

// log2 of the normal positive number with these bits, less `scaled` 2^-23, within 1e-10 of the value.
//   x = 2^e y with sqrt(1/2) <= y < sqrt(2); log2 y = 2 artanh(s) / ln 2 = s z with s = (y - 1) / (y + 1), z = 2 / ln 2
// + w q(w), w = s^2.
LOCKSTEP_ALWAYS_INLINE TwoFloats log2(std::uint32_t bits, std::uint32_t scaled) {
  constexpr float kScale = 1.0F / 8388608.0F;                         // 2^-23
  const std::uint32_t exponent = (bits - 0x3f3504f3U) & 0xff800000U;  // e 2^23
  const auto e = static_cast<float>(static_cast<std::int32_t>(exponent - scaled));
  const float y = std::bit_cast<float>(bits - exponent), numerator = y - 1.0F;
  const float denominator = y + 1.0F, denominator_low = y - (denominator - 1.0F);
  const float inverse = 1.0F / denominator, s = numerator * inverse;
  const float s_low = fma(-s, denominator_low, fma(-s, denominator, numerator)) * inverse;
  const float w = s * s, w2 = w * w, w_low = fma(s, s, -w);
  // 2 / ln 2 in two parts, and a third of it.
  constexpr float kFirst = 2.88539004F, kFirstLow = 3.85192598e-8F, kSecond = 0.961796701F;
  const float q_rest = fma(fma(0.3365348402F, w, 0.411925079F), w, 0.5770788453F);
  const float z = fma(w, fma(q_rest, w, kSecond), kFirst);
  const float z_low = fma(w2, q_rest, fma(w_low, kSecond, fma(w, kSecond, kFirst - z) + kFirstLow));
  const float slope = fma(3.0F, z, -2.0F * kFirst);  // derivative of s z with respect to s
  const float of_y = s * z, of_y_low = fma(s_low, slope, fma(s, z_low, fma(s, z, -of_y)));
  const float sum = fma(e, kScale, of_y);
  return {sum, (of_y + fma(e, kScale, -sum)) + of_y_low};
}

// A float clamped to +-limit. Uses an integer minimum, because comparisons of floats become branches, which compilers
// do not vectorise. NaN becomes +-limit.
LOCKSTEP_ALWAYS_INLINE float within(float limit, float x) {
  const auto magnitude = std::min(std::bit_cast<std::uint32_t>(abs(x)), std::bit_cast<std::uint32_t>(limit));
  return std::bit_cast<float>(magnitude | (std::bit_cast<std::uint32_t>(x) & 0x80000000U));
}

// 2^(high + low), subnormal results included; `low` is at most what rounding to `high` lost. For NaN the result is some
// number.
LOCKSTEP_ALWAYS_INLINE float exp2(float high, float low) {
  const float p = within(152.0F, high);
  low = p == high ? low : 0.0F;
  // The exponents of 2^n's two factors, as bits of a float, are the halves of n + 254.
  constexpr float kBiased = kRounder + 254.0F;
  const float shifted = p + kBiased;
  const float f = (p - (shifted - kBiased)) + low, f2 = f * f;
  const float t01 = fma(5.5503595906e-2F, f, 2.4022647586e-1F), t23 = fma(1.3390958502e-3F, f, 9.6185175608e-3F);
  const float t = fma(fma(1.5324314942e-4F, f2, t23), f2, t01);
  const float e = fma(fma(t, f, 6.93147182e-1F), f, 1.0F);  // the last two steps by Horner: half the rounding error
  const auto n = std::bit_cast<std::uint32_t>(shifted);
  const std::uint32_t half = (n << 22) & 0xff800000U;
  return e * std::bit_cast<float>(half) * std::bit_cast<float>((n << 23) - half);
}

// An exponent clamped to +-kLargestExponent, and the rules by which C's pow() differs from 2^(p log2 |x|).
struct PowerRule {
  float exponent, exponent_low;
  bool is_whole;
  std::uint32_t sign;  // the sign bit if the exponent is odd
};

// For any finite exponent other than 0.
inline PowerRule power_rule(double exponent) {
  const double p = std::clamp(exponent, -double{kLargestExponent}, double{kLargestExponent});
  const auto high = static_cast<float>(p);
  const bool is_whole = std::trunc(p) == p, is_odd = is_whole && std::fmod(p, 2) != 0;
  return {high, static_cast<float>(p - high), is_whole, is_odd ? 0x80000000U : 0};
}

// x^p of a normal positive x and any finite p, within 1 unit in the last place, subnormal results included. p_low is
// what rounding to p lost.
LOCKSTEP_ALWAYS_INLINE float power_of_normal(float x, float p) {
  const TwoFloats log = log2(std::bit_cast<std::uint32_t>(x), 0);
  const float product = p * log.high;
  return exp2(product, fma(p, log.low, fma(p, log.high, -product)));
}
LOCKSTEP_ALWAYS_INLINE float power_of_normal(float x, float p, float p_low) {
  const TwoFloats log = log2(std::bit_cast<std::uint32_t>(x), 0);
  const float product = p * log.high;
  return exp2(product, fma(p_low, log.high, fma(p, log.low, fma(p, log.high, -product))));
}

// The same bits, for any x.
LOCKSTEP_ALWAYS_INLINE float power(float x, const PowerRule& rule) {
  constexpr float kSmallestNormal = 1.17549435e-38F, kTwoTo23 = 8388608.0F;
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const float magnitude = abs(x), factor = magnitude < kSmallestNormal ? kTwoTo23 : 1.0F;
  TwoFloats log = log2(std::bit_cast<std::uint32_t>(magnitude * factor), std::bit_cast<std::uint32_t>(factor) - kOne);
  log.high = magnitude == 0 ? -kInfinity : log.high;
  log.high = ((x < 0) & !rule.is_whole) ? kNan : log.high;
  log.high = magnitude < kInfinity ? log.high : magnitude;
  const float product = rule.exponent * log.high;
  const float low =
      fma(rule.exponent_low, log.high, fma(rule.exponent, log.low, fma(rule.exponent, log.high, -product)));
  float y = exp2(product, low);
  y = product == product ? y : product;
  const std::uint32_t sign = std::bit_cast<std::uint32_t>(x) & rule.sign;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(y) | sign);
}

// The same for any p, including NaN and infinities: 1 if x is 1 or p is 0, even if the other is NaN.
LOCKSTEP_ALWAYS_INLINE float power(float x, float p) {
  const float exponent = within(kLargestExponent, p);
  const auto whole = static_cast<std::int32_t>(exponent);
  const bool is_whole = static_cast<float>(whole) == exponent;
  const PowerRule rule{exponent, 0, is_whole,
                       (0U - static_cast<std::uint32_t>(is_whole)) & static_cast<std::uint32_t>(whole) << 31};
  float y = power(x, rule);
  y = ((p == p) | (x == 1.0F)) ? y : p;
  return p == 0 ? 1.0F : y;
}

}  // namespace lockstep::vector_math

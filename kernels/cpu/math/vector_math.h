// exp, log and tanh for the CPU's vector loops, because compilers do not vectorise calls of the C library. Each is a
// sequence of operations without branches that is inlined into the loop, and computes the same bits for every
// instruction set; NaN stays NaN. A product followed by a sum is fused with it and rounded once: one instruction on
// CPUs with FMA, otherwise a call of the C library, which is slow but gives the same bits. The polynomials were fitted
// for this file: minimal relative error on their ranges, by least squares with weights that follow the error (Lawson
// 1961). They are evaluated by Estrin's scheme, which has shorter chains of dependent steps than Horner's.
// tests/kernels/cpu/vector_math_test.cpp measures the errors.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/always_inline.h"

namespace lockstep::vector_math {

constexpr std::uint32_t kOne = 0x3f800000U;  // the bits of 1; plus n << 23 they are those of 2^n, for n in -126 .. 127
// 1.5 * 2^23: adding it rounds to a whole number, which is then in the lowest bits.
constexpr float kRounder = 12582912.0F;

// a * b + c, rounded once.
LOCKSTEP_ALWAYS_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// The distance of the bits from those of the smallest normal number, as an unsigned number: below kNormals exactly for
// positive normal numbers.
constexpr std::uint32_t kSmallestNormalBits = 0x00800000U, kNormals = 0x7f000000U;
LOCKSTEP_ALWAYS_INLINE std::uint32_t place_among_normals(float x) {
  return std::bit_cast<std::uint32_t>(x) - kSmallestNormalBits;
}

// e^r - 1 for |r| <= ln(2) / 2, to 3e-9: r + r^2 (t[0] + t[1] r + ...).
constexpr float kExpTerms[] = {4.99999934105e-1F, 1.6666520088e-1F, 4.16683946205e-2F, 8.36878225034e-3F,
                               1.38144474311e-3F};
LOCKSTEP_ALWAYS_INLINE float expm1_polynomial(float r) {
  const float square = r * r;
  const float p01 = fma(kExpTerms[1], r, kExpTerms[0]), p23 = fma(kExpTerms[3], r, kExpTerms[2]);
  return fma(fma(fma(kExpTerms[4], square, p23), square, p01), square, r);
}
LOCKSTEP_ALWAYS_INLINE float exp_polynomial(float r) { return expm1_polynomial(r) + 1.0F; }

// Within 1.1 units in the last place; underflows to 0 and overflows to infinity where float32 ends; subnormal results
// included.
//   e^x = 2^n e^r with n = round(x / ln 2), so that |r| <= ln(2) / 2; 2^n is computed as two factors, because n may
// exceed a float's exponents.
LOCKSTEP_ALWAYS_INLINE float exp(float x) {
  x = x > 89.0F ? 89.0F : x;
  x = x < -104.0F ? -104.0F : x;
  const float shifted = fma(x, 1.44269504088896341F, kRounder);
  const float whole = shifted - kRounder;
  // ln 2 in two parts: the first product is exact.
  const float r = fma(whole, 2.12194440e-4F, fma(whole, -0.693359375F, x));
  const auto n = std::bit_cast<std::uint32_t>(shifted);  // n is in the low bits; those above cancel
  const std::uint32_t half = (n << 22) & 0xff800000U;
  return exp_polynomial(r) * std::bit_cast<float>(half + kOne) * std::bit_cast<float>((n << 23) - half + kOne);
}

LOCKSTEP_ALWAYS_INLINE float abs(float x) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0x7fffffffU);
}

// The same without subnormal results, for uses that add 1 to the result: 0 below -87.68, infinity from 88.4 on. 2^n is
// one factor: 0 for n = -127, infinity for n = 128.
LOCKSTEP_ALWAYS_INLINE float normal_exp(float x) {
  x = x > 89.0F ? 89.0F : x;
  x = x < -88.0F ? -88.0F : x;
  const float shifted = fma(x, 1.44269504088896341F, kRounder);
  const float whole = shifted - kRounder;
  const float r = fma(whole, 2.12194440e-4F, fma(whole, -0.693359375F, x));
  return exp_polynomial(r) * std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) << 23) + kOne);
}

// e^x - 1 within 2 units in the last place: 2^n (e^r - 1) + (2^n - 1), half of it at a time, because 2^n may overflow.
LOCKSTEP_ALWAYS_INLINE float expm1(float x) {
  float limited = x > 89.0F ? 89.0F : x;
  limited = limited < -25.0F ? -25.0F : limited;
  const float shifted = fma(limited, 1.44269504088896341F, kRounder);
  const float whole = shifted - kRounder;
  const float r = fma(whole, 2.12194440e-4F, fma(whole, -0.693359375F, limited));
  const float half = std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) << 23) + (kOne - 0x00800000U));
  return 2.0F * fma(half, expm1_polynomial(r), half - 0.5F);
}

// Within 2 units in the last place; -infinity for 0, NaN for negative numbers; infinity and NaN stay.
//   x = 2^e (1 + m) with 2/3 <= 1 + m < 4/3; log(1 + m) = m + m^2 q(m). Using a single float for ln 2 costs 0.05 units
// where e is not 0.
LOCKSTEP_ALWAYS_INLINE float log(float x) {
  constexpr float kSmallestNormal = 1.17549435e-38F;
  constexpr std::uint32_t kTwoThirds = 0x3f2aaaabU;
  const float factor = x < kSmallestNormal ? 8388608.0F : 1.0F;  // 2^23
  const auto bits = std::bit_cast<std::uint32_t>(x * factor);
  const std::uint32_t exponent = (bits - kTwoThirds) & 0xff800000U,
                      scaled = std::bit_cast<std::uint32_t>(factor) - kOne;
  const auto e = static_cast<float>(static_cast<std::int32_t>(exponent - scaled));  // e 2^23
  const float m = std::bit_cast<float>(bits - exponent) - 1.0F, square = m * m;
  const float q01 = fma(0.3333319814F, m, -0.4999993608F), q23 = fma(0.2001116858F, m, -0.250078189F);
  const float q45 = fma(0.1399580852F, m, -0.1641596057F), q67 = fma(0.1402635123F, m, -0.1538854078F);
  const float q = fma(fma(q67, square, q45), square * square, fma(q23, square, q01));
  float result = fma(e, 0.69314718055994531F / 8388608.0F, fma(square, q, m));
  const float infinity = std::bit_cast<float>(0x7f800000U), nan = std::bit_cast<float>(0x7fc00000U);
  result = x == infinity ? x : result;
  const float of_others = x == 0 ? -infinity : nan;
  return x > 0 ? result : of_others;
}

// log(1 + x) within 3 units in the last place: the logarithm of the rounded sum, and what rounding lost, divided by it.
LOCKSTEP_ALWAYS_INLINE float log1p(float x) {
  const float sum = 1.0F + x, of_sum = log(sum), lost = x - (sum - 1.0F);
  const bool is_exact =
      (lost == 0) | !(sum < std::bit_cast<float>(0x7f800000U));  // then 0 / 0 must not reach the result
  return is_exact ? of_sum : of_sum + lost / sum;
}

// Returns `magnitude`, which is not negative, with the sign of `sign`.
LOCKSTEP_ALWAYS_INLINE float with_sign(float magnitude, float sign) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) |
                              (std::bit_cast<std::uint32_t>(sign) & 0x80000000U));
}

// Within 6 units in the last place: x P(x^2) / Q(x^2), all coefficients positive.
LOCKSTEP_ALWAYS_INLINE float tanh(float x) {
  float t = abs(x);
  t = t > 10.0F ? 10.0F : t;  // beyond that the quotient is above 1
  const float u = t * t, square = u * u;
  const float p01 = fma(1.3377355329e-1F, u, 1.0F), p23 = fma(2.05373549731e-5F, u, 3.49122963766e-3F);
  const float q01 = fma(4.67106698971e-1F, u, 1.0F), q23 = fma(3.2785072127e-4F, u, 2.58603995632e-2F);
  const float p = fma(fma(1.32551787249e-8F, square, p23), square, p01),
              q = fma(fma(7.73586672892e-7F, square, q23), square, q01);
  const float y = t * p / q;
  return with_sign(y > 1.0F ? 1.0F : y, x);
}

// 1 / (1 + e^-x) within 3 units in the last place; 0 for x <= -88.4.
LOCKSTEP_ALWAYS_INLINE float sigmoid(float x) { return 1.0F / (1.0F + normal_exp(-x)); }

}  // namespace lockstep::vector_math

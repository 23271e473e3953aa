// exp, log and tanh for the CPU's vector loops: compilers turn no call of the C library into vector code. Each is a
// straight line of operations without branches, inlined into the loop, and gives the same bits for every instruction
// set; NaN stays NaN. Products that a sum follows are fused with it, rounded once: one instruction where the CPU has
// FMA, else a call of the C library, slow and the same bits. Polynomials were fitted for this file: least relative
// error on their ranges, by least squares whose weights follow the error (Lawson 1961). They are evaluated by Estrin's
// scheme, whose steps wait for fewer others than Horner's. tests/kernels/cpu/vector_math_test.cpp measures the errors.
#pragma once

#include <bit>
#include <cstdint>

#define LOCKSTEP_VECTOR_MATH __attribute__((always_inline)) inline

namespace lockstep::vector_math {

constexpr std::uint32_t kOne = 0x3f800000U;  // the bits of 1: plus n << 23 those of 2^n, for -126 .. 127
constexpr float kRounder =
    12582912.0F;  // 1.5 * 2^23: adding it rounds to a whole number, which then are the lowest bits

// a * b + c, rounded once.
LOCKSTEP_VECTOR_MATH float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// How far above the smallest normal number's the bits are, as unsigned numbers: below kNormals of positive normal
// numbers alone.
constexpr std::uint32_t kSmallestNormalBits = 0x00800000U, kNormals = 0x7f000000U;
LOCKSTEP_VECTOR_MATH std::uint32_t place_among_normals(float x) {
  return std::bit_cast<std::uint32_t>(x) - kSmallestNormalBits;
}

// e^r for |r| <= ln(2) / 2, to 3e-9.
LOCKSTEP_VECTOR_MATH float exp_polynomial(float r) {
  const float square = r * r;
  const float p01 = fma(1.6666520088e-1F, r, 4.99999934105e-1F), p23 = fma(8.36878225034e-3F, r, 4.16683946205e-2F);
  return fma(fma(fma(1.38144474311e-3F, square, p23), square, p01), square, r) + 1.0F;
}

// Within 1.1 units in the last place, 0 and infinity where float32 ends, subnormal results included.
//   e^x = 2^n e^r with n = round(x / ln 2), so that |r| <= ln(2) / 2; 2^n is two factors, since n may be beyond a
//   float's exponent.
LOCKSTEP_VECTOR_MATH float exp(float x) {
  x = x > 89.0F ? 89.0F : x;
  x = x < -104.0F ? -104.0F : x;
  const float shifted = fma(x, 1.44269504088896341F, kRounder);
  const float whole = shifted - kRounder;
  const float r =
      fma(whole, 2.12194440e-4F, fma(whole, -0.693359375F, x));  // ln 2 in two parts: the first product is exact
  const auto n = std::bit_cast<std::uint32_t>(shifted);          // in its low bits, those above cancel
  const std::uint32_t half = (n << 22) & 0xff800000U;
  return exp_polynomial(r) * std::bit_cast<float>(half + kOne) * std::bit_cast<float>((n << 23) - half + kOne);
}

LOCKSTEP_VECTOR_MATH float abs(float x) { return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0x7fffffffU); }

// The same without subnormal results, for what adds 1 to them: 0 below -87.68, infinity from 88.4 on. 2^n is one
// factor: 0 of n = -127, infinity of n = 128.
LOCKSTEP_VECTOR_MATH float normal_exp(float x) {
  x = x > 89.0F ? 89.0F : x;
  x = x < -88.0F ? -88.0F : x;
  const float shifted = fma(x, 1.44269504088896341F, kRounder);
  const float whole = shifted - kRounder;
  const float r = fma(whole, 2.12194440e-4F, fma(whole, -0.693359375F, x));
  return exp_polynomial(r) * std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) << 23) + kOne);
}

// Within 2 units in the last place; -infinity of 0, NaN of what is negative; infinity and NaN stay.
//   x = 2^e (1 + m) with 2/3 <= 1 + m < 4/3; log(1 + m) = m + m^2 q(m). ln 2 as one float: 0.05 units of what e ln 2 is
//   part of.
LOCKSTEP_VECTOR_MATH float log(float x) {
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

// `magnitude`, which is not negative, with the sign of `sign`.
LOCKSTEP_VECTOR_MATH float with_sign(float magnitude, float sign) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) |
                              (std::bit_cast<std::uint32_t>(sign) & 0x80000000U));
}

// Within 6 units in the last place: x P(x^2) / Q(x^2), all coefficients positive.
LOCKSTEP_VECTOR_MATH float tanh(float x) {
  float t = abs(x);
  t = t > 10.0F ? 10.0F : t;  // where the quotient is above 1
  const float u = t * t, square = u * u;
  const float p01 = fma(1.3377355329e-1F, u, 1.0F), p23 = fma(2.05373549731e-5F, u, 3.49122963766e-3F);
  const float q01 = fma(4.67106698971e-1F, u, 1.0F), q23 = fma(3.2785072127e-4F, u, 2.58603995632e-2F);
  const float p = fma(fma(1.32551787249e-8F, square, p23), square, p01),
              q = fma(fma(7.73586672892e-7F, square, q23), square, q01);
  const float y = t * p / q;
  return with_sign(y > 1.0F ? 1.0F : y, x);
}

// 1 / (1 + e^-x) within 3 units in the last place; 0 from x = -88.4 down.
LOCKSTEP_VECTOR_MATH float sigmoid(float x) { return 1.0F / (1.0F + normal_exp(-x)); }

}  // namespace lockstep::vector_math

// exp, log, tanh and the normal distribution for the CPU's vector loops: compilers turn no call of the C library into vector code.
// Each is a straight line of operations without branches, inlined into the loop, and gives the same bits for every instruction set; NaN
// stays NaN. Products that a sum follows are fused with it, rounded once: one instruction where the CPU has FMA, else a call of the C
// library, slow and the same bits. log's polynomial is that of Moshier's Cephes library (single precision). The others were fitted for this
// file: least relative error on their ranges, by least squares whose weights follow the error (Lawson 1961). They are evaluated by Estrin's
// scheme, whose steps wait for fewer others than Horner's. tests/kernels/cpu/vector_math_test.cpp measures the errors.
#pragma once

#include <bit>
#include <cstdint>

#define LOCKSTEP_VECTOR_MATH __attribute__((always_inline)) inline

namespace lockstep::vector_math {

constexpr std::uint32_t kOne = 0x3f800000U;  // the bits of 1: plus n << 23 those of 2^n, for -126 .. 127
constexpr float kRounder = 12582912.0F;      // 1.5 * 2^23: adding it rounds to a whole number, which then are the lowest bits

// a * b + c, rounded once.
LOCKSTEP_VECTOR_MATH float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// e^r for |r| <= ln(2) / 2, to 3e-9.
LOCKSTEP_VECTOR_MATH float exp_polynomial(float r) {
  const float square = r * r;
  const float p01 = fma(1.6666520088e-1F, r, 4.99999934105e-1F), p23 = fma(8.36878225034e-3F, r, 4.16683946205e-2F);
  return fma(fma(fma(1.38144474311e-3F, square, p23), square, p01), square, r) + 1.0F;
}

// Within 1.1 units in the last place, 0 and infinity where float32 ends, subnormal results included.
//   e^x = 2^n e^r with n = round(x / ln 2), so that |r| <= ln(2) / 2; 2^n is two factors, since n may be beyond a float's exponent.
LOCKSTEP_VECTOR_MATH float exp(float x) {
  x = x > 89.0F ? 89.0F : x;
  x = x < -104.0F ? -104.0F : x;
  const float shifted = fma(x, 1.44269504088896341F, kRounder);
  const float whole = shifted - kRounder;
  const float r = fma(whole, 2.12194440e-4F, fma(whole, -0.693359375F, x));  // ln 2 in two parts: the first product is exact
  const auto n = std::bit_cast<std::uint32_t>(shifted);                      // in its low bits, those above cancel
  const std::uint32_t half = (n << 22) & 0xff800000U;
  return exp_polynomial(r) * std::bit_cast<float>(half + kOne) * std::bit_cast<float>((n << 23) - half + kOne);
}

LOCKSTEP_VECTOR_MATH float abs(float x) { return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0x7fffffffU); }

// The same without subnormal results, for what adds 1 to them: 0 below -87.68, infinity from 88.4 on. 2^n is one factor: 0 of n = -127,
// infinity of n = 128.
LOCKSTEP_VECTOR_MATH float normal_exp(float x) {
  x = x > 89.0F ? 89.0F : x;
  x = x < -88.0F ? -88.0F : x;
  const float shifted = fma(x, 1.44269504088896341F, kRounder);
  const float whole = shifted - kRounder;
  const float r = fma(whole, 2.12194440e-4F, fma(whole, -0.693359375F, x));
  return exp_polynomial(r) * std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) << 23) + kOne);
}

// p(m) of log(1 + m) = m - m^2 / 2 + m^3 p(m), where sqrt(1/2) <= 1 + m < sqrt(2).
LOCKSTEP_VECTOR_MATH float log_polynomial(float m) {
  float p = 7.0376836292e-2F;
  p = fma(p, m, -1.1514610310e-1F);
  p = fma(p, m, 1.1676998740e-1F);
  p = fma(p, m, -1.2420140846e-1F);
  p = fma(p, m, 1.4249322787e-1F);
  p = fma(p, m, -1.6668057665e-1F);
  p = fma(p, m, 2.0000714765e-1F);
  p = fma(p, m, -2.4999993993e-1F);
  p = fma(p, m, 3.3333331174e-1F);
  return p;
}

// log of a normal positive number, within 2 units in the last place.
//   x = 2^e m with sqrt(1/2) <= m < sqrt(2).
LOCKSTEP_VECTOR_MATH float log_of_normal(float x, float exponent_offset) {
  // From sqrt(1/2) upwards the exponent is one more.
  const std::uint32_t offset = std::bit_cast<std::uint32_t>(x) - 0x3f3504f3U;
  const float exponent = static_cast<float>(static_cast<std::int32_t>(offset) >> 23) + exponent_offset;
  const float m = std::bit_cast<float>((offset & 0x007fffffU) + 0x3f3504f3U) - 1.0F;
  const float square = m * m;
  const float result = fma(m * square, log_polynomial(m), exponent * -2.12194440e-4F);
  return fma(exponent, 0.693359375F, m + fma(-0.5F, square, result));
}

// Within 2 units in the last place; -infinity of 0, NaN of what is negative; infinity and NaN stay.
LOCKSTEP_VECTOR_MATH float log(float x) {
  constexpr float kSmallestNormal = 1.17549435e-38F;
  const bool is_subnormal = x < kSmallestNormal;
  float result = log_of_normal(is_subnormal ? x * 8388608.0F : x, is_subnormal ? -23.0F : 0.0F);  // 2^23
  const float infinity = std::bit_cast<float>(0x7f800000U), nan = std::bit_cast<float>(0x7fc00000U);
  result = x == infinity ? x : result;
  result = x == 0 ? -infinity : result;
  return x >= 0 ? result : nan;
}

// `magnitude`, which is not negative, with the sign of `sign`.
LOCKSTEP_VECTOR_MATH float with_sign(float magnitude, float sign) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | (std::bit_cast<std::uint32_t>(sign) & 0x80000000U));
}

// Within 6 units in the last place: x P(x^2) / Q(x^2), all coefficients positive.
LOCKSTEP_VECTOR_MATH float tanh(float x) {
  float t = abs(x);
  t = t > 10.0F ? 10.0F : t;  // where the quotient is above 1
  const float u = t * t, square = u * u;
  const float p01 = fma(1.3377355329e-1F, u, 1.0F), p23 = fma(2.05373549731e-5F, u, 3.49122963766e-3F);
  const float q01 = fma(4.67106698971e-1F, u, 1.0F), q23 = fma(3.2785072127e-4F, u, 2.58603995632e-2F);
  const float p = fma(fma(1.32551787249e-8F, square, p23), square, p01), q = fma(fma(7.73586672892e-7F, square, q23), square, q01);
  const float y = t * p / q;
  return with_sign(y > 1.0F ? 1.0F : y, x);
}

// 1 / (1 + e^-x) within 3 units in the last place; 0 from x = -88.4 down.
LOCKSTEP_VECTOR_MATH float sigmoid(float x) { return 1.0F / (1.0F + normal_exp(-x)); }

struct NormalDistribution {
  float cdf, gaussian;
};

// P(X <= x) of a normal X, and e^(-x^2 / 2). The error of both grows with that of x^2: within 4 units in the last place above -1, 11 above
// -3, 1e-5 of the value above -12.9; beyond 13.25 they are 0 (or 1).
//   P(X <= -t) = e^(-t^2 / 2) P(t) / Q(t), all coefficients positive; e^(-t^2 / 2) = 2^n 2^f with |f| <= 1/2.
LOCKSTEP_VECTOR_MATH NormalDistribution normal_distribution(float x) {
  float t = abs(x);
  t = t > 13.25F ? 13.25F : t;  // where n is -127, whose factor is 0
  const float square = t * t;
  constexpr float kFactor = -0.72134752044448170F;  // -1 / (2 ln 2)
  const float shifted = fma(square, kFactor, kRounder);
  const float f = fma(square, kFactor, kRounder - shifted), f2 = f * f;
  const float e01 = fma(6.9314718792663e-1F, f, 1.0F);
  const float e23 = fma(5.5503574339158e-2F, f, 2.4022649794887e-1F);
  const float e45 = fma(1.3390735365691e-3F, f, 9.6182375871468e-3F);
  const float e = fma(fma(fma(1.5403482782943863e-4F, f2, e45), f2, e23), f2, e01);
  const float gaussian = e * std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) << 23) + kOne);
  const float p01 = fma(4.35703864936e-1F, t, 0.5F), p23 = fma(3.99886744848e-2F, t, 1.81319957811e-1F);
  const float p = fma(fma(4.02086967788e-3F, square, p23), square, p01);
  const float q01 = fma(1.66929264896F, t, 1.0F), q23 = fma(4.64415207294e-1F, t, 1.19453860964F);
  const float q45 = fma(1.0078682518e-2F, t, 1.00244118526e-1F);
  const float q = fma(fma(q45, square, q23), square, q01);
  const float tail = gaussian * p / q;
  return {x < 0 ? tail : 1.0F - tail, gaussian};
}

}  // namespace lockstep::vector_math

// The normal distribution for the CPU's vector loops, by the method of vector_math.h.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/cpu/math/vector_math.h"

namespace lockstep::vector_math {

struct NormalDistribution {
  float cdf, gaussian;
};

// P(X <= x) of a normal X, and e^(-x^2 / 2). The error of both grows with that of x^2: within 4 units in the last place
// above -1, 11 above -3, 1e-5 of the value above -12.9; beyond 13.25 they are 0 (or 1).
//   P(X <= -t) = e^(-t^2 / 2) P(t) / Q(t), all coefficients positive; e^(-t^2 / 2) = 2^n 2^f with |f| <= 1/2.
LOCKSTEP_ALWAYS_INLINE NormalDistribution normal_distribution(float x) {
  float t = abs(x);
  t = t > 13.25F ? 13.25F : t;  // there n is -127, whose factor is 0
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

// P(X <= x) alone, without a division; normal_tail(t) is P(X <= -t) of t >= 0: within 5 units in the last place above
// -1, 18 above -3, 6e-6 of the value above -5.5; below that an absolute error of 1e-13, and 0 (or 1) beyond 13.
//   P(X <= -t) = 2^y with y = -1 + t p(t): the integer part of y becomes the exponent, the rest goes into 2^f with |f|
// <= 1/2.
LOCKSTEP_ALWAYS_INLINE float normal_tail(float t) {
  t = t > 13.0F ? 13.0F : t;  // there the exponent is -127, whose factor is 0
  const float square = t * t;
  float even = fma(7.019475519e-10F, square, 7.497811143e-7F), odd = fma(-3.52913781e-8F, square, -8.782049833e-6F);
  even = fma(even, square, 6.060698356e-5F), odd = fma(odd, square, -2.181928371e-4F);
  even = fma(even, square, -1.378581227e-4F), odd = fma(odd, square, 7.125226132e-3F);
  even = fma(even, square, -5.256685403e-2F), odd = fma(odd, square, -4.591788489e-1F);
  even = fma(even, square, -1.151108901F);
  const float p = fma(odd, t, even);
  constexpr float kBiased = kRounder + 127.0F - 1.0F;  // the integer part's lowest bits are those of a float's exponent
  const float shifted = fma(t, p, kBiased);
  const float f = fma(t, p, kBiased - shifted), f2 = f * f;
  const float e01 = fma(6.931469776e-1F, f, 1.0F), e23 = fma(5.5507337442e-2F, f, 2.4022242085e-1F);
  const float e45 = fma(1.3264726899e-3F, f, 9.6715126606e-3F);
  const float e = fma(fma(e45, f2, e23), f2, e01);
  return e * std::bit_cast<float>(std::bit_cast<std::uint32_t>(shifted) << 23);
}
LOCKSTEP_ALWAYS_INLINE float normal_cdf(float x) {
  const float tail = normal_tail(abs(x));
  return x < 0 ? tail : 1.0F - tail;
}

// Within 4 units in the last place: x P(x^2) up to 1, 1 - 2 P(X <= -x sqrt(2)) beyond.
LOCKSTEP_ALWAYS_INLINE float erf(float x) {
  const float t = abs(x), square = x * x, square2 = square * square;
  const float p01 = fma(-3.7612625759e-1F, square, 1.1283791657F);
  const float p23 = fma(-2.6853571783e-2F, square, 1.1283581895e-1F);
  const float p45 = fma(-8.0027937025e-4F, square, 5.1876767331e-3F);
  const float p = fma(fma(fma(7.8239763163e-5F, square2, p45), square2, p23), square2, p01);
  const float beyond = with_sign(fma(-2.0F, normal_tail(t * 1.41421356F), 1.0F), x);
  return t < 1.0F ? x * p : beyond;
}

}  // namespace lockstep::vector_math

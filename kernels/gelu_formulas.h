// The formulas of GELU and its derivatives, on the arithmetic `Math` of unary_functions.h.
#pragma once

#include "kernels/always_inline.h"

namespace lockstep {

// Both follow from the same exponential function. For the first alone there may be a faster way: normal_cdf().
template <typename Number> struct NormalDistribution {
  Number cdf, gaussian;  // P(X <= x), e^(-x^2 / 2)
};

template <typename Math> struct GeluFormulas {
  using Number = typename Math::Number;

  LOCKSTEP_FORMULA static Number slope(Number x) {
    constexpr auto kDensity = static_cast<Number>(0.398942280401432678);  // 1 / sqrt(2 pi)
    const auto normal = Math::normal_distribution(x);
    return Math::fma(x * kDensity, normal.gaussian, normal.cdf);
  }

  // (1 + tanh(u)) / 2 is the logistic function of 2 u, which stays precise where tanh is near -1.
  //   2 u = a (x + 0.044715 x^3), a = 2 sqrt(2 / pi)
  LOCKSTEP_FORMULA static Number tanh_value(Number x) {
    return x * Math::logistic(kA * Math::fma(kCubic * x * x, x, x));
  }
  // 2 u = x (a + b x^2), and its derivative is a + 3 b x^2. Where the logistic function is 0 or 1, so is the slope,
  // because x^2 may overflow there. NaN stays NaN.
  LOCKSTEP_FORMULA static Number tanh_slope(Number x) {
    constexpr Number kB = kA * kCubic;
    const Number square = x * x, s = Math::logistic(x * Math::fma(kB, square, kA)), s_slope = s * (1 - s);
    const Number factor = x * Math::fma(3 * kB, square, kA);
    return Math::fma(s_slope, s_slope == 0 ? kZero : factor, s);
  }

 private:
  static constexpr Number kZero = 0;
  static constexpr auto kA = static_cast<Number>(1.59576912160573072), kCubic = static_cast<Number>(0.044715);
};

}  // namespace lockstep

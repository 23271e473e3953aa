// The formulas of unary functions and of their derivatives, written once: for the CPU's plain kernels (double), for its
// vector loops (float) and for GPUs (float). `Math` is the arithmetic of one of the three:
//
//   struct Math {
//     using Number = float;
//     static Number exp(Number x);                      likewise log, sqrt, tanh, abs
//     static Number power(Number x, Number exponent);   C's pow()
//     static Number logistic(Number x);                 1 / (1 + e^-x)
//     static Number normal_cdf(Number x);               P(X <= x) of a normal X
//     static NormalDistribution<Number> normal_distribution(Number x);   or any struct with these members
//     static Number fma(Number a, Number b, Number c);  a b + c, rounded once if Number is float
//   };
//
// A vector loop passes `function` as a constant, so the switch is gone before the compiler looks at the loop.
#pragma once

#include "kernels/always_inline.h"
#include "lockstep/core/elementwise_functions.h"

namespace lockstep {

// Both follow from the same exponential function. For the first alone there may be a faster way: normal_cdf().
template <typename Number> struct NormalDistribution {
  Number cdf, gaussian;  // P(X <= x), e^(-x^2 / 2)
};

template <typename Math> struct UnaryFormulas {
  using Number = typename Math::Number;

  // f(x); p is UnaryOperation::parameter.
  LOCKSTEP_FORMULA static Number value(UnaryFunction function, Number x, Number p) {
    switch (function) {
      case UnaryFunction::kGelu: return x * Math::normal_cdf(x);
      case UnaryFunction::kGeluTanh: return gelu_tanh(x);
      case UnaryFunction::kSilu: return x * Math::logistic(x);
      case UnaryFunction::kTanh: return Math::tanh(x);
      case UnaryFunction::kSigmoid: return Math::logistic(x);
      case UnaryFunction::kLeakyReLU: return x > 0 ? x : p * x;
      case UnaryFunction::kExp: return Math::exp(x);
      case UnaryFunction::kLog: return Math::log(x);
      case UnaryFunction::kSqrt: return Math::sqrt(x);
      case UnaryFunction::kPow: return p == 2 ? x * x : p == 3 ? x * x * x : Math::power(x, p);
      case UnaryFunction::kAbs: return Math::abs(x);
      case UnaryFunction::kReciprocal: return p / x;
      case UnaryFunction::kAddConstant: return x + p;
    }
    return x;
  }

  // f'(x). `saved` is the result y if UnaryFunctionInfo::is_differentiated_by_result, else x.
  LOCKSTEP_FORMULA static Number slope(UnaryFunction function, Number saved, Number p) {
    const Number x = saved, y = saved;
    switch (function) {
      case UnaryFunction::kGelu: return gelu_slope(x);
      case UnaryFunction::kGeluTanh: return gelu_tanh_slope(x);
      case UnaryFunction::kSilu: return silu_slope(x);
      case UnaryFunction::kTanh: return 1 - y * y;
      case UnaryFunction::kSigmoid: return y * (1 - y);
      case UnaryFunction::kLeakyReLU: return x > 0 ? kOne : p;
      case UnaryFunction::kExp: return y;
      case UnaryFunction::kLog: return 1 / x;
      case UnaryFunction::kSqrt: return kOne / 2 / y;
      case UnaryFunction::kPow: return p == 0 ? kZero : p == 2 ? 2 * x : p == 3 ? 3 * x * x : p * Math::power(x, p - 1);
      case UnaryFunction::kAbs: return x > 0 ? kOne : x < 0 ? -kOne : kZero;
      case UnaryFunction::kReciprocal: return -p / (x * x);
      case UnaryFunction::kAddConstant: return 1;
    }
    return 1;
  }

 private:
  // Typed, because a choice between int constants would be converted in each iteration of a loop.
  static constexpr Number kZero = 0, kOne = 1;

  LOCKSTEP_FORMULA static Number gelu_slope(Number x) {
    constexpr auto kDensity = static_cast<Number>(0.398942280401432678);  // 1 / sqrt(2 pi)
    const auto normal = Math::normal_distribution(x);
    return Math::fma(x * kDensity, normal.gaussian, normal.cdf);
  }

  // (1 + tanh(u)) / 2 is the logistic function of 2 u, which stays precise where tanh is near -1.
  //   2 u = a (x + 0.044715 x^3), a = 2 sqrt(2 / pi)
  static constexpr auto kA = static_cast<Number>(1.59576912160573072), kCubic = static_cast<Number>(0.044715);
  LOCKSTEP_FORMULA static Number gelu_tanh(Number x) {
    return x * Math::logistic(kA * Math::fma(kCubic * x * x, x, x));
  }
  // 2 u = x (a + b x^2), and its derivative is a + 3 b x^2. Where the logistic function is 0 or 1, so is the slope,
  // because x^2 may overflow there. NaN stays NaN.
  LOCKSTEP_FORMULA static Number gelu_tanh_slope(Number x) {
    constexpr Number kB = kA * kCubic;
    const Number square = x * x, s = Math::logistic(x * Math::fma(kB, square, kA)), s_slope = s * (1 - s);
    const Number factor = x * Math::fma(3 * kB, square, kA);
    return Math::fma(s_slope, s_slope == 0 ? kZero : factor, s);
  }

  LOCKSTEP_FORMULA static Number silu_slope(Number x) {
    const Number s = Math::logistic(x);
    return s * Math::fma(x, 1 - s, 1);
  }
};

}  // namespace lockstep

// The formulas of unary functions and of their derivatives, written once: for the CPU's plain kernels (double), for its
// vector loops (float) and for GPUs (float). `Math` is the arithmetic of one of the three:
//
//   struct Math {
//     using Number = float;
//     static Number exp(Number x);                      likewise log, sqrt, tanh, abs, sin, cos, erf, log1p, expm1,
//                                                       floor, ceil, and round, from the middle to the even one
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
#include "kernels/gelu_formulas.h"
#include "lockstep/core/elementwise_functions.h"

namespace lockstep {

template <typename Math> struct UnaryFormulas {
  using Number = typename Math::Number;
  using Gelu = GeluFormulas<Math>;

  // f(x); p and q are UnaryOperation's parameters.
  LOCKSTEP_FORMULA static Number value(UnaryFunction function, Number x, Number p, Number q) {
    switch (function) {
      case UnaryFunction::kGelu: return x * Math::normal_cdf(x);
      case UnaryFunction::kGeluTanh: return Gelu::tanh_value(x);
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
      case UnaryFunction::kSin: return Math::sin(x);
      case UnaryFunction::kCos: return Math::cos(x);
      case UnaryFunction::kErf: return Math::erf(x);
      case UnaryFunction::kLog1p: return Math::log1p(x);
      case UnaryFunction::kExpm1: return Math::expm1(x);
      case UnaryFunction::kRsqrt: return 1 / Math::sqrt(x);
      case UnaryFunction::kSoftplus: return p * x > q ? x : softplus(p * x) / p;
      case UnaryFunction::kElu: return x > 0 ? x : p * Math::expm1(x);
      case UnaryFunction::kHardswish: return x * (clamp(x + 3, kZero, kSix) * (kOne / 6));
      case UnaryFunction::kHardsigmoid: return clamp(x + 3, kZero, kSix) * (kOne / 6);
      case UnaryFunction::kMish: return mish(x);
      case UnaryFunction::kClamp: return clamp(x, p, q);
      case UnaryFunction::kSign: return sign(x);
      case UnaryFunction::kFloor: return Math::floor(x);
      case UnaryFunction::kCeil: return Math::ceil(x);
      case UnaryFunction::kRound: return Math::round(x);
    }
    return x;
  }

  // f'(x). `saved` is the result y if UnaryFunctionInfo::slope_from is kResult, else x.
  LOCKSTEP_FORMULA static Number slope(UnaryFunction function, Number saved, Number p, Number q) {
    const Number x = saved, y = saved;
    switch (function) {
      case UnaryFunction::kGelu: return Gelu::slope(x);
      case UnaryFunction::kGeluTanh: return Gelu::tanh_slope(x);
      case UnaryFunction::kSilu: return silu_slope(x);
      case UnaryFunction::kTanh: return 1 - y * y;
      case UnaryFunction::kSigmoid: return y * (1 - y);
      case UnaryFunction::kLeakyReLU: return x > 0 ? kOne : p;
      case UnaryFunction::kExp: return y;
      case UnaryFunction::kLog: return 1 / x;
      case UnaryFunction::kSqrt: return kOne / 2 / y;
      case UnaryFunction::kPow: return p == 0 ? kZero : p == 2 ? 2 * x : p == 3 ? 3 * x * x : p * Math::power(x, p - 1);
      case UnaryFunction::kAbs: return sign(x);
      case UnaryFunction::kReciprocal: return -p / (x * x);
      case UnaryFunction::kAddConstant: return 1;
      case UnaryFunction::kSin: return Math::cos(x);
      case UnaryFunction::kCos: return -Math::sin(x);
      case UnaryFunction::kErf: return kTwoByRootPi * Math::exp(-x * x);
      case UnaryFunction::kLog1p: return 1 / (1 + x);
      case UnaryFunction::kExpm1: return y + 1;
      case UnaryFunction::kRsqrt: return y * y * y * (-kOne / 2);
      case UnaryFunction::kSoftplus: return p * x > q ? kOne : Math::logistic(p * x);
      case UnaryFunction::kElu: return elu_slope(x, p);
      case UnaryFunction::kHardswish: return x <= -3 ? kZero : x < 3 ? Math::fma(x, kOne / 3, kOne / 2) : kOne;
      case UnaryFunction::kHardsigmoid: return ((x > -3) & (x < 3)) ? kOne / 6 : kZero;
      case UnaryFunction::kMish: return mish_slope(x);
      case UnaryFunction::kClamp: return ((x > p) & (x < q)) ? kOne : kZero;
      case UnaryFunction::kSign: return 0;
      case UnaryFunction::kFloor: return 0;
      case UnaryFunction::kCeil: return 0;
      case UnaryFunction::kRound: return 0;
    }
    return 1;
  }

 private:
  // Typed, because a choice between int constants would be converted in each iteration of a loop.
  static constexpr Number kZero = 0, kOne = 1, kSix = 6;
  static constexpr auto kTwoByRootPi = static_cast<Number>(1.12837916709551257);

  LOCKSTEP_FORMULA static Number sign(Number x) { return x > 0 ? kOne : x < 0 ? -kOne : kZero; }

  // NaN stays NaN.
  LOCKSTEP_FORMULA static Number clamp(Number x, Number low, Number high) {
    const Number raised = x < low ? low : x;
    return raised > high ? high : raised;
  }

  // e^x is computed also where it is not used, because compilers do not vectorise a branch.
  LOCKSTEP_FORMULA static Number elu_slope(Number x, Number p) {
    const Number below = p * Math::exp(x > 0 ? kZero : x);
    return x > 0 ? kOne : below;
  }

  LOCKSTEP_FORMULA static Number softplus(Number z) {
    return (z > 0 ? z : kZero) + Math::log1p(Math::exp(-Math::abs(z)));
  }

  // tanh(log(1 + e)) = n / (n + 2) with n = e (e + 2). Beyond 20 it is 1, and e^2 may overflow.
  LOCKSTEP_FORMULA static Number mish(Number x) {
    const Number e = Math::exp(x > 20 ? Number{20} : x), n = e * (e + 2);
    return x * (n / (n + 2));
  }
  // Its derivative is 4 e (1 + e) / (n + 2)^2.
  LOCKSTEP_FORMULA static Number mish_slope(Number x) {
    const Number limited = x > 20 ? Number{20} : x, e = Math::exp(limited), n = e * (e + 2), inverse = 1 / (n + 2);
    return Math::fma(limited * (e * inverse), 4 * (1 + e) * inverse, n * inverse);
  }

  LOCKSTEP_FORMULA static Number silu_slope(Number x) {
    const Number s = Math::logistic(x);
    return s * Math::fma(x, 1 - s, 1);
  }
};

}  // namespace lockstep

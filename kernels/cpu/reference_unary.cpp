// Unary functions and their derivatives, in double.
#include <cmath>
#include <numbers>

#include "kernels/cpu/reference.h"

namespace lockstep::reference {

namespace {

double normal_cdf(double x) { return std::erfc(-x / std::numbers::sqrt2) / 2; }
double normal_density(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi); }
double logistic(double x) { return 1 / (1 + std::exp(-x)); }

// For GELU's approximation: the argument of tanh, and its derivative.
constexpr double kCubic = 0.044715;
double gelu_inner(double x) { return std::sqrt(2 / std::numbers::pi) * (x + kCubic * x * x * x); }
double gelu_inner_slope(double x) { return std::sqrt(2 / std::numbers::pi) * (1 + 3 * kCubic * x * x); }

double value_of(const UnaryOperation& operation, double x) {
  const double p = operation.parameter;
  switch (operation.function) {
    case UnaryFunction::kGelu: return x * normal_cdf(x);
    case UnaryFunction::kGeluTanh: return x * (1 + std::tanh(gelu_inner(x))) / 2;
    case UnaryFunction::kSilu: return x * logistic(x);
    case UnaryFunction::kTanh: return std::tanh(x);
    case UnaryFunction::kSigmoid: return logistic(x);
    case UnaryFunction::kLeakyReLU: return x > 0 ? x : p * x;
    case UnaryFunction::kExp: return std::exp(x);
    case UnaryFunction::kLog: return std::log(x);
    case UnaryFunction::kSqrt: return std::sqrt(x);
    case UnaryFunction::kPow: return std::pow(x, p);
    case UnaryFunction::kAbs: return std::abs(x);
    case UnaryFunction::kReciprocal: return p / x;
    case UnaryFunction::kAddConstant: return x + p;
  }
  return x;
}

// `saved` is the result if UnaryFunctionInfo::is_differentiated_by_result, else x.
double derivative_of(const UnaryOperation& operation, double saved) {
  const double x = saved, y = saved, p = operation.parameter;
  switch (operation.function) {
    case UnaryFunction::kGelu: return normal_cdf(x) + x * normal_density(x);
    case UnaryFunction::kGeluTanh: {
      const double t = std::tanh(gelu_inner(x)), t_slope = 1 - t * t;
      return (1 + t) / 2 +
             (t_slope == 0 ? 0 : x / 2 * t_slope * gelu_inner_slope(x));  // the slope is 0 where x is infinite
    }
    case UnaryFunction::kSilu: return logistic(x) * (1 + x * (1 - logistic(x)));
    case UnaryFunction::kTanh: return 1 - y * y;
    case UnaryFunction::kSigmoid: return y * (1 - y);
    case UnaryFunction::kLeakyReLU: return x > 0 ? 1 : p;
    case UnaryFunction::kExp: return y;
    case UnaryFunction::kLog: return 1 / x;
    case UnaryFunction::kSqrt: return 1 / (2 * y);
    case UnaryFunction::kPow: return p == 0 ? 0 : p * std::pow(x, p - 1);
    case UnaryFunction::kAbs: return x > 0 ? 1 : x < 0 ? -1 : 0;
    case UnaryFunction::kReciprocal: return -p / (x * x);
    case UnaryFunction::kAddConstant: return 1;
  }
  return 1;
}

void unary(const UnaryOperation& operation, In x, Out y, Stream&) {
  const float* const from = x.floats();
  float* const to = y.floats();
  for (Index i = 0; i < y.count(); ++i) to[i] = static_cast<float>(value_of(operation, from[i]));
}

void unary_backward(const UnaryOperation& operation, In saved, In y_grad, Out x_grad, Stream&) {
  const float *const at = saved.floats(), *const from = y_grad.floats();
  float* const to = x_grad.floats();
  for (Index i = 0; i < x_grad.count(); ++i) store(to[i], from[i] * derivative_of(operation, at[i]), x_grad.accumulate);
}

}  // namespace

void use_unary(KernelTable& table) {
  table.unary = any_float<unary>;
  table.unary_backward = any_float<unary_backward>;
}

}  // namespace lockstep::reference

// The functions that the kernel families `unary` and `binary` compute element by element.
#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
namespace lockstep {

// p is UnaryOperation::parameter.
enum class UnaryFunction : std::uint8_t {
  kGelu,         // x * P(X <= x), X normal: x * (1 + erf(x / sqrt(2))) / 2 (Hendrycks, Gimpel 2016)
  kGeluTanh,     // x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2 (approximation from the same paper)
  kSilu,         // x / (1 + e^-x)
  kTanh,         //
  kSigmoid,      // 1 / (1 + e^-x)
  kLeakyReLU,    // x > 0 ? x : p x
  kExp,          //
  kLog,          //
  kSqrt,         //
  kPow,          // x^p
  kAbs,          //
  kReciprocal,   // p / x
  kAddConstant,  // x + p
};

struct UnaryOperation {
  UnaryFunction function;
  float parameter = 0;
};

// True if the derivative is computed from the result; for the others it is computed from x.
constexpr bool is_differentiated_by_result(UnaryFunction function) {
  return function == UnaryFunction::kTanh || function == UnaryFunction::kSigmoid || function == UnaryFunction::kExp ||
         function == UnaryFunction::kSqrt;
}

// Functions of a and b. Powers of special values are those of C's pow().
enum class BinaryFunction : std::uint8_t {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kPow,               // a^b
  kPowBaseSlope,      // derivative with respect to a: b a^(b - 1), 0 where b is 0
  kPowExponentSlope,  // derivative with respect to b: a^b ln(a), 0 where a is 0 and b >= 0
};

// Where an operand is NaN, kNotEqual is true and all others are false.
enum class Comparison : std::uint8_t { kEqual, kNotEqual, kGreater, kGreaterEqual };

}  // namespace lockstep
#pragma GCC visibility pop

// The functions that the families `unary` and `binary` of a kernel table compute, elementwise.
#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
namespace lockstep {

// p is UnaryOperation::parameter.
enum class UnaryFunction : std::uint8_t {
  kGelu,         // x * P(X <= x), X normal: x * (1 + erf(x / sqrt(2))) / 2 (Hendrycks, Gimpel 2016)
  kGeluTanh,     // x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2 (the same, its approximation)
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

// Its derivative is computed from the result, the others' from x.
constexpr bool is_differentiated_by_result(UnaryFunction function) {
  return function == UnaryFunction::kTanh || function == UnaryFunction::kSigmoid || function == UnaryFunction::kExp ||
         function == UnaryFunction::kSqrt;
}

// Of a and b. Powers of special values are those of C's pow().
enum class BinaryFunction : std::uint8_t {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kPow,               // a^b
  kPowBaseSlope,      // its derivative by a: b a^(b - 1), 0 where b is 0
  kPowExponentSlope,  // its derivative by b: a^b ln(a), 0 where a is 0 and b >= 0
};

// False wherever one of both is no number, but for kNotEqual.
enum class Comparison : std::uint8_t { kEqual, kNotEqual, kGreater, kGreaterEqual };

}  // namespace lockstep
#pragma GCC visibility pop

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

// Properties of a unary function, for its callers and tests.
struct UnaryFunctionInfo {
  UnaryFunction function;
  const char* name;                        // in tests and benchmarks
  bool is_differentiated_by_result;        // the derivative is computed from the result; otherwise from x
  bool is_float32_under_autocast = false;  // as in PyTorch's list
  bool is_of_positive = false;             // only defined for x > 0
  float parameter = 0;                     // an example for tests and benchmarks
};

// In the order of the enumerators.
inline constexpr UnaryFunctionInfo kUnaryFunctions[] = {
    {UnaryFunction::kGelu, "gelu", false},
    {UnaryFunction::kGeluTanh, "gelu tanh", false},
    {UnaryFunction::kSilu, "silu", false},
    {UnaryFunction::kTanh, "tanh", true},
    {UnaryFunction::kSigmoid, "sigmoid", true},
    {UnaryFunction::kLeakyReLU, "leaky relu", false, false, false, 0.01F},
    {UnaryFunction::kExp, "exp", true, true},
    {UnaryFunction::kLog, "log", false, true, true},
    {UnaryFunction::kSqrt, "sqrt", true, false, true},
    {UnaryFunction::kPow, "power", false, true, true, -1.5F},
    {UnaryFunction::kAbs, "abs", false},
    {UnaryFunction::kReciprocal, "reciprocal", false, true, false, 2.5F},
    {UnaryFunction::kAddConstant, "add constant", false, false, false, -0.3F},
};

constexpr const UnaryFunctionInfo& info_of(UnaryFunction function) {
  return kUnaryFunctions[static_cast<std::uint8_t>(function)];
}
static_assert([] {
  for (const UnaryFunctionInfo& info : kUnaryFunctions)
    if (&info_of(info.function) != &info) return false;
  return true;
}());

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

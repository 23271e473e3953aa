// The functions that the kernel families `unary` and `binary` compute element by element.
#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
namespace lockstep {

// p and q are UnaryOperation's parameters.
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
  kSin,          //
  kCos,          //
  kErf,          //
  kLog1p,        // log(1 + x)
  kExpm1,        // e^x - 1
  kRsqrt,        // 1 / sqrt(x)
  kSoftplus,     // log(1 + e^(p x)) / p, or x where p x > q
  kElu,          // x > 0 ? x : p (e^x - 1) (Clevert et al. 2015)
  kHardswish,    // x * hardsigmoid(x) (Howard et al. 2019)
  kHardsigmoid,  // x + 3, clamped to 0 .. 6, / 6
  kMish,         // x * tanh(log(1 + e^x)) (Misra 2019)
  kClamp,        // x, but at least p and at most q; slope 0 at both
  kSign,         // 1, 0 or -1; 0 for NaN
  kFloor,        //
  kCeil,         //
  kRound,        // to the nearest whole number, from the middle to the even one
};

struct UnaryOperation {
  UnaryFunction function;
  float parameter = 0, second = 0;
};

// The value that the derivative is computed from; with kNothing it is a constant.
enum class SlopeFrom : std::uint8_t { kArgument, kResult, kNothing };

// Properties of a unary function, for its callers and tests.
struct UnaryFunctionInfo {
  UnaryFunction function;
  const char* name;  // in tests and benchmarks
  SlopeFrom slope_from = SlopeFrom::kArgument;
  bool is_float32_under_autocast = false;  // as in PyTorch's list
  bool is_of_positive = false;             // only defined for x > 0
  float parameter = 0, second = 0;         // an example for tests and benchmarks
};

// In the order of the enumerators.
inline constexpr UnaryFunctionInfo kUnaryFunctions[] = {
    {UnaryFunction::kGelu, "gelu"},
    {UnaryFunction::kGeluTanh, "gelu tanh"},
    {UnaryFunction::kSilu, "silu"},
    {UnaryFunction::kTanh, "tanh", SlopeFrom::kResult},
    {UnaryFunction::kSigmoid, "sigmoid", SlopeFrom::kResult},
    {UnaryFunction::kLeakyReLU, "leaky relu", SlopeFrom::kArgument, false, false, 0.01F},
    {UnaryFunction::kExp, "exp", SlopeFrom::kResult, true},
    {UnaryFunction::kLog, "log", SlopeFrom::kArgument, true, true},
    {UnaryFunction::kSqrt, "sqrt", SlopeFrom::kResult, false, true},
    {UnaryFunction::kPow, "power", SlopeFrom::kArgument, true, true, -1.5F},
    {UnaryFunction::kAbs, "abs"},
    {UnaryFunction::kReciprocal, "reciprocal", SlopeFrom::kArgument, true, false, 2.5F},
    {UnaryFunction::kAddConstant, "add constant", SlopeFrom::kNothing, false, false, -0.3F},
    {UnaryFunction::kSin, "sin"},
    {UnaryFunction::kCos, "cos"},
    {UnaryFunction::kErf, "erf"},
    {UnaryFunction::kLog1p, "log1p", SlopeFrom::kArgument, true},
    {UnaryFunction::kExpm1, "expm1", SlopeFrom::kResult, true},
    {UnaryFunction::kRsqrt, "rsqrt", SlopeFrom::kResult, true, true},
    {UnaryFunction::kSoftplus, "softplus", SlopeFrom::kArgument, true, false, 0.8F, 20.0F},
    {UnaryFunction::kElu, "elu", SlopeFrom::kArgument, false, false, 0.7F},
    {UnaryFunction::kHardswish, "hardswish"},
    {UnaryFunction::kHardsigmoid, "hardsigmoid"},
    {UnaryFunction::kMish, "mish"},
    {UnaryFunction::kClamp, "clamp", SlopeFrom::kArgument, false, false, -0.5F, 0.25F},
    {UnaryFunction::kSign, "sign", SlopeFrom::kNothing},
    {UnaryFunction::kFloor, "floor", SlopeFrom::kNothing},
    {UnaryFunction::kCeil, "ceil", SlopeFrom::kNothing},
    {UnaryFunction::kRound, "round", SlopeFrom::kNothing},
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
  kMaximum,           // NaN if one is
  kMinimum,           // NaN if one is
  kMaximumSlope,      // derivative of the maximum with respect to a, or of the minimum to b: 1 (also for NaN), 1/2, 0
};

// Where an operand is NaN, kNotEqual is true and all others are false.
enum class Comparison : std::uint8_t { kEqual, kNotEqual, kGreater, kGreaterEqual };

}  // namespace lockstep
#pragma GCC visibility pop

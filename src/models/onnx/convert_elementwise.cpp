#include <cmath>
#include <limits>
#include <string_view>

#include "lockstep/core/error.h"
#include "src/models/onnx/converters.h"

namespace lockstep::onnx {

namespace {

// 1 + e^x and log(1 + x) lose digits near 0: (u - 1) / log(u) corrects them with the u that was rounded (Kahan's
// formula for log1p, Goldberg 1991, "What every computer scientist should know about floating-point arithmetic",
// theorem 4).
std::string precise_near_zero(GraphBuilder& to, const std::string& x, bool is_log1p) {
  const std::string one = to.number(1), half = to.number(0.5F);
  const std::string u = is_log1p ? to.add("Add", {x, one}) : to.add("Exp", {x});
  const std::string log_u = to.add("Log", {u}), less = to.add("Sub", {u, one});
  const std::string plain = is_log1p ? log_u : less;
  const std::string ratio = is_log1p ? to.add("Div", {log_u, less}) : to.add("Div", {less, log_u});
  const std::string corrected = to.add("Where", {to.add("Equal", {u, one}), x, to.add("Mul", {x, ratio})});
  return to.add("Where", {to.add("Less", {to.add("Abs", {x}), half}), corrected, plain});
}

std::string gelu_value(GraphBuilder& to, const std::string& x, bool is_tanh) {
  if (to.opset() >= 20) return to.add("Gelu", {x}, {{"approximate", std::string(is_tanh ? "tanh" : "none")}});
  std::string inner;
  if (is_tanh) {
    const std::string cube = to.add("Mul", {to.add("Mul", {x, x}), x});
    const std::string sum = to.add("Add", {x, to.add("Mul", {cube, to.number(0.044715F)})});
    inner = to.add("Tanh", {to.add("Mul", {sum, to.number(static_cast<float>(std::sqrt(2 / M_PI)))})});
  } else {
    inner = to.add("Erf", {to.add("Div", {x, to.number(static_cast<float>(std::sqrt(2.0)))})});
  }
  return to.add("Mul", {to.add("Mul", {x, to.add("Add", {inner, to.number(1)})}), to.number(0.5F)});
}

std::string softplus_value(GraphBuilder& to, const std::string& x, float beta, float threshold) {
  constexpr float kNoDifference = 17;  // from here on softplus(x) is x in float32
  const std::string scaled = beta == 1 ? x : to.add("Mul", {x, to.number(beta)});
  std::string y = to.add("Softplus", {scaled});
  if (beta != 1) y = to.add("Div", {y, to.number(beta)});
  if (threshold >= kNoDifference) return y;
  return to.add("Where", {to.add("Greater", {scaled, to.number(threshold)}), x, y});
}

std::string mish_value(GraphBuilder& to, const std::string& x) {
  if (to.opset() >= 18) return to.add("Mish", {x});
  return to.add("Mul", {x, to.add("Tanh", {to.add("Softplus", {x})})});
}

std::string clamped(GraphBuilder& to, const std::string& x, float min, float max) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  return to.add("Clip", {x, min == -kInfinity ? "" : to.number(min), max == kInfinity ? "" : to.number(max)});
}

}  // namespace

std::string unary_function(GraphBuilder& to, UnaryFunction function, float parameter, float second,
                           const std::string& x) {
  switch (function) {
    case UnaryFunction::kGelu: return gelu_value(to, x, false);
    case UnaryFunction::kGeluTanh: return gelu_value(to, x, true);
    case UnaryFunction::kSilu: return to.add("Mul", {x, to.add("Sigmoid", {x})});
    case UnaryFunction::kTanh: return to.add("Tanh", {x});
    case UnaryFunction::kSigmoid: return to.add("Sigmoid", {x});
    case UnaryFunction::kLeakyReLU: return to.add("LeakyRelu", {x}, {{"alpha", parameter}});
    case UnaryFunction::kExp: return to.add("Exp", {x});
    case UnaryFunction::kLog: return to.add("Log", {x});
    case UnaryFunction::kSqrt: return to.add("Sqrt", {x});
    case UnaryFunction::kPow: return to.add("Pow", {x, to.number(parameter)});
    case UnaryFunction::kAbs: return to.add("Abs", {x});
    case UnaryFunction::kReciprocal: return to.add("Div", {to.number(parameter), x});
    case UnaryFunction::kAddConstant: return to.add("Add", {x, to.number(parameter)});
    case UnaryFunction::kSin: return to.add("Sin", {x});
    case UnaryFunction::kCos: return to.add("Cos", {x});
    case UnaryFunction::kErf: return to.add("Erf", {x});
    case UnaryFunction::kLog1p: return precise_near_zero(to, x, true);
    case UnaryFunction::kExpm1: return precise_near_zero(to, x, false);
    case UnaryFunction::kRsqrt: return to.add("Div", {to.number(1), to.add("Sqrt", {x})});
    case UnaryFunction::kSoftplus: return softplus_value(to, x, parameter, second);
    case UnaryFunction::kElu: return to.add("Elu", {x}, {{"alpha", parameter}});
    case UnaryFunction::kHardswish: return to.add("HardSwish", {x});
    case UnaryFunction::kHardsigmoid: return to.add("HardSigmoid", {x}, {{"alpha", 1.0F / 6}, {"beta", 0.5F}});
    case UnaryFunction::kMish: return mish_value(to, x);
    case UnaryFunction::kClamp: return clamped(to, x, parameter, second);
    case UnaryFunction::kSign: return to.add("Sign", {x});
    case UnaryFunction::kFloor: return to.add("Floor", {x});
    case UnaryFunction::kCeil: return to.add("Ceil", {x});
    case UnaryFunction::kRound: return to.add("Round", {x});
  }
  LOCKSTEP_CHECK(false, "unary function {} has no counterpart", static_cast<int>(function));
}

void convert_unary(Conversion& c) {
  if (c.op() == "relu") return c.result(c.to.add("Relu", {c.in(0)}));
  c.result(unary_function(c.to, static_cast<UnaryFunction>(c.integer("unary")), c.number("parameter"),
                          c.number("second"), c.in(0)));
}

void convert_binary(Conversion& c) {
  constexpr std::pair<std::string_view, const char*> kNames[] = {
      {"add", "Add"}, {"sub", "Sub"},     {"mul", "Mul"},     {"div", "Div"},
      {"pow", "Pow"}, {"maximum", "Max"}, {"minimum", "Min"}, {"bias_add", "Add"}};
  for (const auto& [ours, theirs] : kNames)
    if (c.op() == ours) return c.result(c.to.add(theirs, {c.in(0), c.in(1)}));
}

void convert_scaling(Conversion& c) {
  if (c.op() == "scale") {
    const float factor = c.number("factor");
    return c.result(factor == -1 ? c.to.add("Neg", {c.in(0)}) : c.to.add("Mul", {c.in(0), c.to.number(factor)}));
  }
  const Extents from = c.saved_extents(0);
  const std::string factor = from.empty() ? c.saved(0) : c.to.reshape(c.saved(0), from, {});
  c.result(c.to.add("Mul", {c.in(0), factor}));
}

void convert_selection(Conversion& c) {
  if (c.op() == "where") return c.result(c.to.add("Where", {c.saved_as_bool(0), c.in(0), c.in(1)}));
  const std::string a = c.in(0), b = c.in(1);
  switch (static_cast<Comparison>(c.integer("comparison"))) {
    case Comparison::kEqual: return c.result(c.to.as_mask(c.to.add("Equal", {a, b})));
    case Comparison::kNotEqual: return c.result(c.to.as_mask(c.to.add("Not", {c.to.add("Equal", {a, b})})));
    case Comparison::kGreater: return c.result(c.to.as_mask(c.to.add("Greater", {a, b})));
    case Comparison::kGreaterEqual: return c.result(c.to.as_mask(c.to.add("GreaterOrEqual", {a, b})));
  }
}

void convert_length_mask(Conversion& c) {
  const std::string lengths = c.lengths("lengths");
  const bool is_steps_first = c.integer("is_steps_first") != 0;
  const std::int64_t steps = c.fixed(c.result_extents()[is_steps_first ? 0 : 1]);
  c.result(c.to.as_mask(is_steps_first ? c.to.step_mask(lengths, steps) : c.to.length_mask(lengths, steps)));
}

}  // namespace lockstep::onnx

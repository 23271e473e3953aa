#include <limits>
#include <optional>

#include "lockstep/autograd/elementwise.h"
#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/ops.h"
#include "src/autograd/math/dimensions.h"

namespace lockstep {

namespace {

// Saved: the result or x, whichever the derivative is computed from; nothing if it is constant.
class UnaryNode : public Node {
 public:
  UnaryNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const char* name, const UnaryOperation& operation)
      : Node(std::move(inputs), std::move(saved)), name_(name), operation_(operation) {}
  const char* name() const override { return name_; }
  std::optional<Attributes> attributes() const override {
    return Attributes{{"unary", static_cast<std::int64_t>(operation_.function)},
                      {"parameter", double{operation_.parameter}},
                      {"second", double{operation_.second}}};
  }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    if (operation_.function == UnaryFunction::kAddConstant) return targets[0].give(result_grad);
    const KernelTable& kernels = kernels_of(result_grad);
    if (info_of(operation_.function).slope_from == SlopeFrom::kNothing)
      return targets[0].give(filled_like(result_grad, 0));
    if (!targets[0].takes())
      return kernels.unary_backward(operation_, saved(0), result_grad, targets[0], stream_of(result_grad));
    kernels.unary_backward(operation_, saved(0), result_grad, result_grad, stream_of(result_grad));
    targets[0].give(result_grad);
  }

 private:
  const char* name_;
  UnaryOperation operation_;
};

Tensor unary(const char* name, const Tensor& given, const UnaryOperation& operation) {
  check_activation(name, "x", given);
  const UnaryFunctionInfo& info = info_of(operation.function);
  const Tensor x = info.is_float32_under_autocast ? autocast_to_float32(given) : given;
  const Tensor y = empty_like(x);
  kernels_of(x).unary(operation, x, y, stream_of(x));
  std::vector<Tensor> saved;
  if (info.slope_from != SlopeFrom::kNothing) saved.push_back(info.slope_from == SlopeFrom::kResult ? detach(y) : x);
  record<UnaryNode>(y, {x}, std::move(saved), name, operation);
  return y;
}

}  // namespace

Tensor gelu(const Tensor& x, GeluApproximation approximation) {
  const bool is_tanh = approximation == GeluApproximation::kTanh;
  return unary("gelu", x, {is_tanh ? UnaryFunction::kGeluTanh : UnaryFunction::kGelu});
}
Tensor silu(const Tensor& x) { return unary("silu", x, {UnaryFunction::kSilu}); }
Tensor tanh(const Tensor& x) { return unary("tanh", x, {UnaryFunction::kTanh}); }
Tensor sigmoid(const Tensor& x) { return unary("sigmoid", x, {UnaryFunction::kSigmoid}); }
Tensor leaky_relu(const Tensor& x, float negative_slope) {
  return unary("leaky_relu", x, {UnaryFunction::kLeakyReLU, negative_slope});
}
Tensor exp(const Tensor& x) { return unary("exp", x, {UnaryFunction::kExp}); }
Tensor ln(const Tensor& x) { return unary("ln", x, {UnaryFunction::kLog}); }
Tensor sqrt(const Tensor& x) { return unary("sqrt", x, {UnaryFunction::kSqrt}); }
Tensor pow(const Tensor& x, float exponent) { return unary("pow", x, {UnaryFunction::kPow, exponent}); }
Tensor abs(const Tensor& x) { return unary("abs", x, {UnaryFunction::kAbs}); }
Tensor reciprocal(const Tensor& x, float numerator) {
  return unary("reciprocal", x, {UnaryFunction::kReciprocal, numerator});
}
Tensor add(const Tensor& x, float constant) { return unary("add", x, {UnaryFunction::kAddConstant, constant}); }

Tensor sin(const Tensor& x) { return unary("sin", x, {UnaryFunction::kSin}); }
Tensor cos(const Tensor& x) { return unary("cos", x, {UnaryFunction::kCos}); }
Tensor erf(const Tensor& x) { return unary("erf", x, {UnaryFunction::kErf}); }
Tensor log1p(const Tensor& x) { return unary("log1p", x, {UnaryFunction::kLog1p}); }
Tensor expm1(const Tensor& x) { return unary("expm1", x, {UnaryFunction::kExpm1}); }
Tensor rsqrt(const Tensor& x) { return unary("rsqrt", x, {UnaryFunction::kRsqrt}); }
Tensor sign(const Tensor& x) { return unary("sign", x, {UnaryFunction::kSign}); }
Tensor floor(const Tensor& x) { return unary("floor", x, {UnaryFunction::kFloor}); }
Tensor ceil(const Tensor& x) { return unary("ceil", x, {UnaryFunction::kCeil}); }
Tensor round(const Tensor& x) { return unary("round", x, {UnaryFunction::kRound}); }
Tensor softplus(const Tensor& x, float beta, float threshold) {
  if (!(beta > 0)) throw InvalidArgument("softplus: beta must be positive, got {}", beta);
  return unary("softplus", x, {UnaryFunction::kSoftplus, beta, threshold});
}
Tensor elu(const Tensor& x, float alpha) { return unary("elu", x, {UnaryFunction::kElu, alpha}); }
Tensor hardswish(const Tensor& x) { return unary("hardswish", x, {UnaryFunction::kHardswish}); }
Tensor hardsigmoid(const Tensor& x) { return unary("hardsigmoid", x, {UnaryFunction::kHardsigmoid}); }
Tensor mish(const Tensor& x) { return unary("mish", x, {UnaryFunction::kMish}); }
Tensor relu6(const Tensor& x) { return unary("relu6", x, {UnaryFunction::kClamp, 0, 6}); }
Tensor clamp(const Tensor& x, std::optional<float> min, std::optional<float> max) {
  if (!min && !max) throw InvalidArgument("clamp: got neither a minimum nor a maximum, expected at least one");
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  return unary("clamp", x, {UnaryFunction::kClamp, min.value_or(-kInfinity), max.value_or(kInfinity)});
}

Tensor neg(const Tensor& x) {
  check_activation("neg", "x", x);
  return scale(x, -1);
}

}  // namespace lockstep

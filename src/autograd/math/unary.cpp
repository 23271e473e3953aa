#include "lockstep/autograd/elementwise.h"
#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/ops.h"

namespace lockstep {

namespace {

// Saved: the result or x, whichever the derivative is computed from; nothing if it is 1.
class UnaryNode : public Node {
 public:
  UnaryNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const char* name, const UnaryOperation& operation)
      : Node(std::move(inputs), std::move(saved)), name_(name), operation_(operation) {}
  const char* name() const override { return name_; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    if (operation_.function == UnaryFunction::kAddConstant) return targets[0].give(result_grad);
    const KernelTable& kernels = kernels_of(result_grad);
    if (!targets[0].takes())
      return kernels.unary_backward(operation_, saved(0), result_grad, targets[0], stream_of(result_grad));
    kernels.unary_backward(operation_, saved(0), result_grad, result_grad, stream_of(result_grad));
    targets[0].give(result_grad);
  }

 private:
  const char* name_;
  UnaryOperation operation_;
};

Tensor unary(const char* name, const Tensor& given, UnaryFunction function, float parameter = 0) {
  check_activation(name, "x", given);
  const Tensor x = info_of(function).is_float32_under_autocast ? autocast_to_float32(given) : given;
  const UnaryOperation operation{function, parameter};
  const Tensor y = empty_like(x);
  kernels_of(x).unary(operation, x, y, stream_of(x));
  std::vector<Tensor> saved;
  if (function != UnaryFunction::kAddConstant)
    saved.push_back(info_of(function).is_differentiated_by_result ? detach(y) : x);
  record<UnaryNode>(y, {x}, std::move(saved), name, operation);
  return y;
}

}  // namespace

Tensor gelu(const Tensor& x, GeluApproximation approximation) {
  return unary("gelu", x, approximation == GeluApproximation::kTanh ? UnaryFunction::kGeluTanh : UnaryFunction::kGelu);
}
Tensor silu(const Tensor& x) { return unary("silu", x, UnaryFunction::kSilu); }
Tensor tanh(const Tensor& x) { return unary("tanh", x, UnaryFunction::kTanh); }
Tensor sigmoid(const Tensor& x) { return unary("sigmoid", x, UnaryFunction::kSigmoid); }
Tensor leaky_relu(const Tensor& x, float negative_slope) {
  return unary("leaky_relu", x, UnaryFunction::kLeakyReLU, negative_slope);
}
Tensor exp(const Tensor& x) { return unary("exp", x, UnaryFunction::kExp); }
Tensor ln(const Tensor& x) { return unary("ln", x, UnaryFunction::kLog); }
Tensor sqrt(const Tensor& x) { return unary("sqrt", x, UnaryFunction::kSqrt); }
Tensor pow(const Tensor& x, float exponent) { return unary("pow", x, UnaryFunction::kPow, exponent); }
Tensor abs(const Tensor& x) { return unary("abs", x, UnaryFunction::kAbs); }
Tensor reciprocal(const Tensor& x, float numerator) {
  return unary("reciprocal", x, UnaryFunction::kReciprocal, numerator);
}
Tensor add(const Tensor& x, float constant) { return unary("add", x, UnaryFunction::kAddConstant, constant); }

Tensor neg(const Tensor& x) {
  check_activation("neg", "x", x);
  return scale(x, -1);
}

}  // namespace lockstep

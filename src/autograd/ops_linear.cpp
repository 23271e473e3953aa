#include "lockstep/autograd/ops.h"
#include "src/autograd/record.h"
#include "src/autograd/typed.h"

namespace lockstep {

using typed::Pointer;

namespace {

// Inputs: x, weight, bias (maybe undefined). Saved: x, the weight as it was read, and the result when ReLU was fused.
class LinearNode : public Node {
 public:
  LinearNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const LinearShape& shape, bool relu)
      : Node(std::move(inputs), std::move(saved)), shape_(shape), relu_(relu) {}
  const char* name() const override { return "linear"; }

  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const Pointer y_grad(result_grad);
    if (relu_) LOCKSTEP_TYPED(result_grad, relu_backward, Pointer(saved(2)), y_grad, result_grad.count());
    const auto& [x_grad, weight_grad, bias_grad] = std::tie(targets[0], targets[1], targets[2]);
    if (weight_grad) {
      LOCKSTEP_TYPED(result_grad, linear_backward_weights, shape_, Pointer(saved(0)), y_grad, weight_grad.data(), bias_grad.data(),
                     weight_grad.accumulate(), bias_grad.accumulate());
    } else if (bias_grad) {
      LOCKSTEP_TYPED(result_grad, bias_backward, y_grad, bias_grad.data(), shape_.batch, shape_.out_features, bias_grad.accumulate());
    }
    if (x_grad)
      LOCKSTEP_TYPED(result_grad, linear_backward_data, shape_, y_grad, Pointer(saved(1)), Pointer(x_grad.memory()), x_grad.accumulate());
  }

 private:
  LinearShape shape_;
  bool relu_;
};

}  // namespace

Tensor linear(const Tensor& input, const Tensor& weight, const Tensor& bias, Activation activation) {
  check_activation("linear", "x (N, I)", input, 2);
  const Tensor x = typed::autocast(input);
  check_input("linear", "weight (O, I)", weight, 2, &x.device());
  const LinearShape shape{x.shape()[0], x.shape()[1], weight.shape()[0]};
  if (weight.shape()[1] != shape.in_features)
    throw InvalidArgument("linear: weight {} wants {} features, x {} has {}", weight.shape().text(), weight.shape()[1], x.shape().text(),
                          shape.in_features);
  if (bias.defined()) {
    check_input("linear", "bias (O)", bias, 1, &x.device());
    if (bias.count() != shape.out_features)
      throw InvalidArgument("linear: bias {} does not match weight {}", bias.shape().text(), weight.shape().text());
  }
  const Tensor y = Tensor::empty({shape.batch, shape.out_features}, x.dtype(), x.device());
  const bool relu = activation == Activation::kReLU;
  const Tensor read_weight = typed::copy_for(x, weight), read_bias = typed::copy_for(x, bias);
  LOCKSTEP_TYPED(x, linear, shape, Pointer(x), Pointer(read_weight), Pointer(read_bias), relu, Pointer(y));
  record<LinearNode>(y, {x, weight, bias}, relu ? std::vector{x, read_weight, detached(y)} : std::vector{x, read_weight}, shape, relu);
  return y;
}

}  // namespace lockstep

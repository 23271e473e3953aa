#include "lockstep/autograd/ops.h"
#include "src/autograd/record.h"

namespace lockstep {

namespace {

// Inputs: x, weight, bias (maybe undefined). Saved: the result, when relu was fused.
class LinearNode : public Node {
 public:
  LinearNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const LinearShape& shape, bool relu)
      : Node(std::move(inputs), std::move(saved)), shape_(shape), relu_(relu) {}
  const char* name() const override { return "linear"; }

  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const KernelTable& kernels = kernels_of(result_grad);
    Stream& stream = stream_of(result_grad);
    float* y_grad = result_grad.data<float>();
    if (relu_) kernels.relu_backward(saved(0).data<float>(), y_grad, result_grad.count(), stream);
    const auto& [x_grad, weight_grad, bias_grad] = std::tie(targets[0], targets[1], targets[2]);
    if (weight_grad) {
      kernels.linear_backward_weights(shape_, input(0).data<float>(), y_grad, weight_grad.data(), bias_grad.data(),
                                      weight_grad.accumulate(), bias_grad.accumulate(), stream);
    } else if (bias_grad) {
      kernels.bias_backward(y_grad, bias_grad.data(), shape_.batch, shape_.out_features, bias_grad.accumulate(), stream);
    }
    if (x_grad) kernels.linear_backward_data(shape_, y_grad, input(1).data<float>(), x_grad.data(), x_grad.accumulate(), stream);
  }

 private:
  LinearShape shape_;
  bool relu_;
};

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, Activation activation) {
  check_input("linear", "x (N, I)", x, 2);
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
  const Tensor y = Tensor::empty({shape.batch, shape.out_features}, DType::kFloat32, x.device());
  const bool relu = activation == Activation::kRelu;
  kernels_of(x).linear(shape, x.data<float>(), weight.data<float>(), data_or_null(bias), relu, y.data<float>(), stream_of(x));
  record<LinearNode>(y, {x, weight, bias}, relu ? std::vector{detached(y)} : std::vector<Tensor>{}, shape, relu);
  return y;
}

}  // namespace lockstep

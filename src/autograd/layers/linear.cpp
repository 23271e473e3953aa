#include "src/autograd/layers/linear_operands.h"

#include "lockstep/autograd/ops.h"
#include "src/autograd/math/row_views.h"

namespace lockstep {

namespace {

// Inputs: x, weight, bias (may be undefined). Saved: x, the weight as it was read, and the result if ReLU was fused.
class LinearNode : public Node {
 public:
  LinearNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, bool relu, const Shape& x_rows, const Shape& y_rows)
      : Node(std::move(inputs), std::move(saved)), relu_(relu), x_rows_(x_rows), y_rows_(y_rows) {}
  const char* name() const override { return "linear"; }
  std::optional<Attributes> attributes() const override { return Attributes{{"relu", std::int64_t{relu_}}}; }

  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const KernelTable& kernels = kernels_of(result_grad);
    Stream& stream = stream_of(result_grad);
    if (relu_) kernels.relu_backward(saved(2), result_grad, stream);
    const auto& [x_grad, weight_grad, bias_grad] = std::tie(targets[0], targets[1], targets[2]);
    const InputView y_grad = in_shape(result_grad, y_rows_);
    if (weight_grad)
      kernels.linear_backward_weights(in_shape(saved(0), x_rows_), y_grad, weight_grad, bias_grad, stream);
    else if (bias_grad)
      kernels.bias_backward(y_grad, bias_grad, stream);
    if (x_grad) kernels.linear_backward_data(y_grad, saved(1), out_shape(x_grad, x_rows_), stream);
  }

 private:
  bool relu_;
  Shape x_rows_, y_rows_;
};

}  // namespace

void check_linear_operands(const char* operation, const Tensor& x, const Tensor& weight, const Tensor& bias,
                           const LinearNames& names) {
  const Shape x_rows = rows_of(operation, x);
  check_input(operation, fmt::format("{} (O, I)", names.weight).c_str(), weight, 2, &x.device());
  if (weight.shape()[1] != x_rows[1])
    throw InvalidArgument("{}: {} {} expects {} features, but {} {} has {}", operation,
                          name_argument(names.weight, weight), weight.shape().text(), weight.shape()[1], names.x,
                          x.shape().text(), x_rows[1]);
  if (!bias.defined()) return;
  check_input(operation, fmt::format("{} (O)", names.bias).c_str(), bias, 1, &x.device());
  if (bias.count() != weight.shape()[0])
    throw InvalidArgument("{}: {} {} does not match {} {}", operation, name_argument(names.bias, bias),
                          bias.shape().text(), name_argument(names.weight, weight), weight.shape().text());
}

Tensor linear(const Tensor& input, const Tensor& weight, const Tensor& bias, Activation activation) {
  check_activation("linear", "x (..., I)", input);
  const Tensor x = autocast(input);
  const Shape x_rows = rows_of("linear", x);
  check_linear_operands("linear", x, weight, bias);
  const Shape y_rows{x_rows[0], weight.shape()[0]};
  const Tensor y = empty_like(x, with_last(x.shape(), weight.shape()[0]));
  const bool relu = activation == Activation::kReLU;
  const Tensor read_weight = read_as(x, weight);
  kernels_of(x).linear(in_shape(x, x_rows), read_weight, read_as(x, bias), relu, out_shape(y, y_rows), stream_of(x));
  record<LinearNode>(y, {x, weight, bias}, relu ? std::vector{x, read_weight, detach(y)} : std::vector{x, read_weight},
                     relu, x_rows, y_rows);
  return relu ? y : activate(y, activation);
}

}  // namespace lockstep

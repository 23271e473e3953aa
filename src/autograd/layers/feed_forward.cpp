#include "lockstep/autograd/feed_forward.h"

#include "lockstep/autograd/ops.h"
#include "src/autograd/layers/linear_operands.h"
#include "src/autograd/math/row_views.h"

namespace lockstep {

namespace {

constexpr const char* kFeedForward = "feed_forward";

// Inputs: x, and the weights and biases (may be undefined). Saved: x, both weights as they were read, GELU's argument
// and its result.
class FeedForwardNode : public Node {
 public:
  FeedForwardNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const UnaryOperation& gelu)
      : Node(std::move(inputs), std::move(saved)), gelu_(gelu) {}
  const char* name() const override { return kFeedForward; }
  std::optional<Attributes> attributes() const override {
    return Attributes{{"gelu", static_cast<std::int64_t>(gelu_.function)}};
  }

  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const Tensor &x = saved(0), &up = saved(1), &down = saved(2), &before = saved(3), &hidden = saved(4);
    const KernelTable& kernels = kernels_of(result_grad);
    Stream& stream = stream_of(result_grad);
    const Shape x_rows = rows_of(kFeedForward, x);
    const InputView y_grad = in_shape(result_grad, rows_of(kFeedForward, result_grad));
    give_to_layer(hidden, y_grad, targets[3], targets[4], kernels, stream);
    if (!targets[0] && !targets[1] && !targets[2]) return;
    const Tensor before_grad = empty_like(before);
    kernels.linear_unary_backward(gelu_, y_grad, down, before, before_grad, stream);
    give_to_layer(in_shape(x, x_rows), before_grad, targets[1], targets[2], kernels, stream);
    if (targets[0]) kernels.linear_backward_data(before_grad, up, out_shape(targets[0], x_rows), stream);
  }

 private:
  static void give_to_layer(In x, In y_grad, const GradTarget& weight_grad, const GradTarget& bias_grad,
                            const KernelTable& kernels, Stream& stream) {
    if (weight_grad)
      kernels.linear_backward_weights(x, y_grad, weight_grad, bias_grad, stream);
    else if (bias_grad)
      kernels.bias_backward(y_grad, bias_grad, stream);
  }

  UnaryOperation gelu_;
};

}  // namespace

Tensor feed_forward(const Tensor& input, const FeedForwardWeights& weights, GeluApproximation approximation) {
  const auto& [up_weight, up_bias, down_weight, down_bias] = weights;
  check_activation(kFeedForward, "x (..., I)", input);
  const Tensor x = autocast(input);
  check_linear_operands(kFeedForward, x, up_weight, up_bias, {"x", "up_weight", "up_bias"});
  const Shape x_rows = rows_of(kFeedForward, x);
  const Tensor before = empty_like(x, {x_rows[0], up_weight.shape()[0]}), hidden = empty_like(before);
  check_linear_operands(kFeedForward, hidden, down_weight, down_bias, {"gelu's result", "down_weight", "down_bias"});
  const UnaryOperation gelu{approximation == GeluApproximation::kTanh ? UnaryFunction::kGeluTanh
                                                                      : UnaryFunction::kGelu};
  const Tensor up = read_as(x, up_weight), down = read_as(x, down_weight);
  const Tensor y = empty_like(x, with_last(x.shape(), down_weight.shape()[0]));
  const KernelTable& kernels = kernels_of(x);
  kernels.linear_unary(gelu, in_shape(x, x_rows), up, read_as(x, up_bias), before, hidden, stream_of(x));
  kernels.linear(hidden, down, read_as(x, down_bias), false, out_shape(y, {x_rows[0], down_weight.shape()[0]}),
                 stream_of(x));
  record<FeedForwardNode>(y, {x, up_weight, up_bias, down_weight, down_bias}, std::vector{x, up, down, before, hidden},
                          gelu);
  return y;
}

}  // namespace lockstep

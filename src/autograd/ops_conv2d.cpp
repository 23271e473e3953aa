#include "lockstep/autograd/ops.h"
#include "src/autograd/record.h"
#include "src/autograd/typed.h"
#include "src/autograd/window.h"

namespace lockstep {

using typed::Pointer;

namespace {

// Inputs: x, weight, bias (maybe undefined). Saved: x, the weight as it was read, and the result when ReLU was fused.
class Conv2dNode : public Node {
 public:
  Conv2dNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const Conv2dShape& shape, bool relu)
      : Node(std::move(inputs), std::move(saved)), shape_(shape), relu_(relu) {}
  const char* name() const override { return "conv2d"; }

  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const Pointer y_grad(result_grad);
    if (relu_) LOCKSTEP_TYPED(result_grad, relu_backward, Pointer(saved(2)), y_grad, result_grad.count());
    const auto& [x_grad, weight_grad, bias_grad] = std::tie(targets[0], targets[1], targets[2]);
    // Weights before data: their bucket can leave while the data gradient is still computed by the layers below.
    if (weight_grad) {
      LOCKSTEP_TYPED(result_grad, conv2d_backward_weights, shape_, Pointer(saved(0)), y_grad, weight_grad.data(), bias_grad.data(),
                     weight_grad.accumulate(), bias_grad.accumulate());
    } else if (bias_grad) {
      LOCKSTEP_TYPED(result_grad, bias_backward, y_grad, bias_grad.data(), rows_of(result_grad, shape_.out_channels), shape_.out_channels,
                     bias_grad.accumulate());
    }
    if (x_grad)
      LOCKSTEP_TYPED(result_grad, conv2d_backward_data, shape_, y_grad, Pointer(saved(1)), Pointer(x_grad.memory()), x_grad.accumulate());
  }

 private:
  Conv2dShape shape_;
  bool relu_;
};

}  // namespace

Tensor conv2d(const Tensor& input, const Tensor& weight, const Tensor& bias, const Conv2dOptions& options) {
  check_activation("conv2d", "x (N, H, W, C)", input, 4);
  const Tensor x = typed::autocast(input);
  check_input("conv2d", "weight (O, KH, KW, C)", weight, 4, &x.device());
  const Shape &in = x.shape(), &kernel = weight.shape();
  if (kernel[3] != in[3])
    throw InvalidArgument("conv2d: weight {} wants {} channels, x {} has {}", kernel.text(), kernel[3], in.text(), in[3]);
  if (bias.defined()) {
    check_input("conv2d", "bias (O)", bias, 1, &x.device());
    if (bias.count() != kernel[0]) throw InvalidArgument("conv2d: bias {} does not match weight {}", bias.shape().text(), kernel.text());
  }
  const WindowGeometry place = place_window("conv2d", {in[1], in[2]}, {kernel[1], kernel[2]}, options.stride, options.padding);
  const Conv2dShape shape{in[0],
                          in[1],
                          in[2],
                          in[3],
                          place.out_height,
                          place.out_width,
                          kernel[0],
                          kernel[1],
                          kernel[2],
                          options.stride[0],
                          options.stride[1],
                          place.padding.top,
                          place.padding.left,
                          place.padding.bottom,
                          place.padding.right};
  const Tensor y = Tensor::empty({in[0], place.out_height, place.out_width, kernel[0]}, x.dtype(), x.device());
  const bool relu = options.activation == Activation::kReLU;
  const Tensor read_weight = typed::copy_for(x, weight), read_bias = typed::copy_for(x, bias);
  LOCKSTEP_TYPED(x, conv2d, shape, Pointer(x), Pointer(read_weight), Pointer(read_bias), relu, Pointer(y));
  record<Conv2dNode>(y, {x, weight, bias}, relu ? std::vector{x, read_weight, detached(y)} : std::vector{x, read_weight}, shape, relu);
  return y;
}

}  // namespace lockstep

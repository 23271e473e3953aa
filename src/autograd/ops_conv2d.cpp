#include "lockstep/autograd/ops.h"
#include "src/autograd/record.h"
#include "src/autograd/window.h"

namespace lockstep {

namespace {

// Inputs: x, weight, bias (maybe undefined). Saved: the result, when relu was fused.
class Conv2dNode : public Node {
 public:
  Conv2dNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const Conv2dShape& shape, bool relu)
      : Node(std::move(inputs), std::move(saved)), shape_(shape), relu_(relu) {}
  const char* name() const override { return "conv2d"; }

  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const KernelTable& kernels = kernels_of(result_grad);
    Stream& stream = stream_of(result_grad);
    float* y_grad = result_grad.data<float>();
    if (relu_) kernels.relu_backward(saved(0).data<float>(), y_grad, result_grad.count(), stream);
    const auto& [x_grad, weight_grad, bias_grad] = std::tie(targets[0], targets[1], targets[2]);
    // Weights before data: their bucket can leave while the data gradient is still computed by the layers below.
    if (weight_grad) {
      kernels.conv2d_backward_weights(shape_, input(0).data<float>(), y_grad, weight_grad.data(), bias_grad.data(),
                                      weight_grad.accumulate(), bias_grad.accumulate(), stream);
    } else if (bias_grad) {
      kernels.bias_backward(y_grad, bias_grad.data(), rows_of(result_grad, shape_.out_channels), shape_.out_channels,
                            bias_grad.accumulate(), stream);
    }
    if (x_grad) kernels.conv2d_backward_data(shape_, y_grad, input(1).data<float>(), x_grad.data(), x_grad.accumulate(), stream);
  }

 private:
  Conv2dShape shape_;
  bool relu_;
};

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dOptions& options) {
  check_input("conv2d", "x (N, H, W, C)", x, 4);
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
  const Tensor y = Tensor::empty({in[0], place.out_height, place.out_width, kernel[0]}, DType::kFloat32, x.device());
  const bool relu = options.activation == Activation::kRelu;
  kernels_of(x).conv2d(shape, x.data<float>(), weight.data<float>(), data_or_null(bias), relu, y.data<float>(), stream_of(x));
  record<Conv2dNode>(y, {x, weight, bias}, relu ? std::vector{detached(y)} : std::vector<Tensor>{}, shape, relu);
  return y;
}

}  // namespace lockstep

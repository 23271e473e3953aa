#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/ops.h"
#include "src/autograd/engine/window.h"

namespace lockstep {

namespace {

// Inputs: x, weight, bias (may be undefined). Saved: x, the weight as it was read, and the result if ReLU was fused.
class Conv2dNode : public Node {
 public:
  Conv2dNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const char* name, const Conv2dShape& shape,
             bool relu)
      : Node(std::move(inputs), std::move(saved)), name_(name), shape_(shape), relu_(relu) {}
  const char* name() const override { return name_; }
  std::optional<Attributes> attributes() const override {
    return Attributes{{"stride", std::vector{shape_.stride_height, shape_.stride_width}},
                      {"padding", std::vector{shape_.pad_top, shape_.pad_left, shape_.pad_bottom, shape_.pad_right}},
                      {"dilation", std::vector{shape_.dilation_height, shape_.dilation_width}},
                      {"groups", shape_.groups},
                      {"relu", std::int64_t{relu_}}};
  }

  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const KernelTable& kernels = kernels_of(result_grad);
    Stream& stream = stream_of(result_grad);
    if (relu_) kernels.relu_backward(saved(2), result_grad, stream);
    const auto& [x_grad, weight_grad, bias_grad] = std::tie(targets[0], targets[1], targets[2]);
    // Weights before data: their bucket can be sent while later nodes are still computing.
    if (weight_grad)
      kernels.conv2d_backward_weights(shape_, saved(0), result_grad, weight_grad, bias_grad, stream);
    else if (bias_grad)
      kernels.bias_backward(result_grad, bias_grad, stream);
    if (x_grad) kernels.conv2d_backward_data(shape_, result_grad, saved(1), x_grad, stream);
  }

 private:
  const char* name_;  // conv2d or conv1d
  Conv2dShape shape_;
  bool relu_;
};

// A call of conv2d() or conv1d(), with sequences as images of height 1: `x` (N, H, W, C).
struct Convolution {
  const char* name;
  Size2 kernel, stride;
  PaddingRule padding;
  Activation activation;
  std::int64_t groups;
  Size2 dilation;

  Size2 reach() const { return {(kernel[0] - 1) * dilation[0] + 1, (kernel[1] - 1) * dilation[1] + 1}; }
};

void check_filters(const Convolution& c, const Tensor& weight, const Tensor& bias, const Tensor& x,
                   const Shape& given) {
  const std::int64_t filters = weight.shape()[0], seen = weight.shape()[weight.shape().dims() - 1],
                     channels = x.shape()[3];
  if (c.groups < 1 || channels % c.groups != 0 || filters % c.groups != 0)
    throw InvalidArgument("{}: {} groups must divide the {} channels of x {} and the {} filters of {} {}", c.name,
                          c.groups, channels, given.text(), filters, name_argument("weight", weight),
                          weight.shape().text());
  if (seen * c.groups != channels)
    throw InvalidArgument("{}: {} {} expects {} channels{}, but x {} has {}", c.name, name_argument("weight", weight),
                          weight.shape().text(), seen * c.groups,
                          c.groups == 1 ? "" : fmt::format(" in {} groups", c.groups), given.text(), channels);
  if (!bias.defined()) return;
  check_input(c.name, "bias (O)", bias, 1, &x.device());
  if (bias.count() != filters)
    throw InvalidArgument("{}: {} {} does not match {} {}", c.name, name_argument("bias", bias), bias.shape().text(),
                          name_argument("weight", weight), weight.shape().text());
}

// `given`: the shape of x that the caller passed.
Tensor convolve(const Convolution& c, const Tensor& x, const Tensor& weight, const Tensor& bias, const Shape& given) {
  check_filters(c, weight, bias, x, given);
  if (c.dilation[0] < 1 || c.dilation[1] < 1)
    throw InvalidArgument("{}: the dilation must be positive, got {} x {}", c.name, c.dilation[0], c.dilation[1]);
  const Shape& in = x.shape();
  const WindowGeometry place = place_window(c.name, {in[1], in[2]}, c.reach(), c.stride, c.padding);
  const Conv2dShape shape{in[0],
                          in[1],
                          in[2],
                          in[3],
                          place.out_height,
                          place.out_width,
                          weight.shape()[0],
                          c.kernel[0],
                          c.kernel[1],
                          c.stride[0],
                          c.stride[1],
                          place.padding.top,
                          place.padding.left,
                          place.padding.bottom,
                          place.padding.right,
                          c.groups,
                          c.dilation[0],
                          c.dilation[1]};
  const Tensor y = empty_like(x, {in[0], place.out_height, place.out_width, weight.shape()[0]});
  const bool relu = c.activation == Activation::kReLU;
  const Tensor read_weight = read_as(x, weight);
  kernels_of(x).conv2d(shape, x, read_weight, read_as(x, bias), relu, y, stream_of(x));
  record<Conv2dNode>(y, {x, weight, bias}, relu ? std::vector{x, read_weight, detach(y)} : std::vector{x, read_weight},
                     c.name, shape, relu);
  return relu ? y : activate(y, c.activation);
}

}  // namespace

Tensor conv2d(const Tensor& input, const Tensor& weight, const Tensor& bias, const Conv2dOptions& options) {
  check_activation("conv2d", "x (N, H, W, C)", input, 4);
  const Tensor x = autocast(input);
  check_input("conv2d", "weight (O, KH, KW, C)", weight, 4, &x.device());
  const Convolution how{"conv2d",           {weight.shape()[1], weight.shape()[2]},
                        options.stride,     options.padding,
                        options.activation, options.groups,
                        options.dilation};
  return convolve(how, x, weight, bias, input.shape());
}

Tensor conv1d(const Tensor& input, const Tensor& weight, const Tensor& bias, const Conv1dOptions& options) {
  check_activation("conv1d", "x (N, L, C)", input, 3);
  const Tensor x = autocast(input);
  check_input("conv1d", "weight (O, K, C)", weight, 3, &x.device());
  const Convolution how{"conv1d",           {1, weight.shape()[1]}, {1, options.stride},  with_height(options.padding),
                        options.activation, options.groups,         {1, options.dilation}};
  return without_height(convolve(how, with_height(x), weight, bias, input.shape()));
}

}  // namespace lockstep

// The convolution whose gradient is computed maps the result, (N, H', W', O), to x, (N, H, W, C).
#include "lockstep/autograd/conv_transpose.h"

#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/ops.h"
#include "src/autograd/engine/window.h"

namespace lockstep {

namespace {

// Inputs: x, weight, bias (may be undefined). Saved: x, and the weight as it was read.
class ConvTransposeNode : public Node {
 public:
  ConvTransposeNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const char* name, const Conv2dShape& shape)
      : Node(std::move(inputs), std::move(saved)), name_(name), shape_(shape) {}
  const char* name() const override { return name_; }
  std::optional<Attributes> attributes() const override {
    const std::int64_t more_rows = shape_.in_height - ((shape_.out_height - 1) * shape_.stride_height +
                                                       shape_.reach_height() - shape_.pad_top - shape_.pad_bottom),
                       more_columns = shape_.in_width - ((shape_.out_width - 1) * shape_.stride_width +
                                                         shape_.reach_width() - shape_.pad_left - shape_.pad_right);
    return Attributes{{"stride", std::vector{shape_.stride_height, shape_.stride_width}},
                      {"padding", std::vector{shape_.pad_top, shape_.pad_left, shape_.pad_bottom, shape_.pad_right}},
                      {"output_padding", std::vector{more_rows, more_columns}},
                      {"dilation", std::vector{shape_.dilation_height, shape_.dilation_width}},
                      {"groups", shape_.groups}};
  }

  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const KernelTable& kernels = kernels_of(result_grad);
    Stream& stream = stream_of(result_grad);
    if (targets[1]) kernels.conv2d_backward_weights(shape_, result_grad, saved(0), targets[1], {}, stream);
    if (targets[2]) kernels.bias_backward(result_grad, targets[2], stream);
    if (!targets[0]) return;
    const Tensor x_grad = empty_like(saved(0));  // apart, because a convolution does not add to its result
    kernels.conv2d(shape_, result_grad, saved(1), {}, false, x_grad, stream);
    targets[0].give(x_grad);
  }

 private:
  const char* name_;
  Conv2dShape shape_;
};

// A call, with sequences as images of height 1.
struct Transposed {
  const char* name;
  ConvTranspose2dOptions options;
  Shape given;  // the shape of x that the caller passed
};

void check_sizes_of(const Transposed& call) {
  const ConvTranspose2dOptions& o = call.options;
  for (const int axis : {0, 1}) {
    if (o.stride[axis] < 1 || o.dilation[axis] < 1)
      throw InvalidArgument("{}: stride {} x {} and dilation {} x {} must be positive", call.name, o.stride[0],
                            o.stride[1], o.dilation[0], o.dilation[1]);
    if (o.output_padding[axis] < 0 || o.output_padding[axis] >= o.stride[axis])
      throw InvalidArgument("{}: output_padding {} x {} must be at least 0 and smaller than the stride {} x {}",
                            call.name, o.output_padding[0], o.output_padding[1], o.stride[0], o.stride[1]);
  }
  if (o.padding.top < 0 || o.padding.left < 0 || o.padding.bottom < 0 || o.padding.right < 0)
    throw InvalidArgument("{}: padding top {}, left {}, bottom {}, right {} must not be negative", call.name,
                          o.padding.top, o.padding.left, o.padding.bottom, o.padding.right);
}

void check_operands(const Transposed& call, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const std::int64_t groups = call.options.groups, channels = x.shape()[3], of_group = weight.shape()[3];
  if (weight.shape()[0] != channels)
    throw InvalidArgument("{}: {} {} expects {} channels, but x {} has {}", call.name, name_argument("weight", weight),
                          weight.shape().text(), weight.shape()[0], call.given.text(), channels);
  if (groups < 1 || channels % groups != 0)
    throw InvalidArgument("{}: {} groups must divide the {} channels of x {}", call.name, groups, channels,
                          call.given.text());
  if (!bias.defined()) return;
  check_input(call.name, "bias (O)", bias, 1, &x.device());
  if (bias.count() != of_group * groups)
    throw InvalidArgument("{}: {} {} does not match {} {} in {} groups: expected {} elements", call.name,
                          name_argument("bias", bias), bias.shape().text(), name_argument("weight", weight),
                          weight.shape().text(), groups, of_group * groups);
}

// `x` (N, H, W, C), `weight` (C, KH, KW, O / groups).
Conv2dShape shape_of_call(const Transposed& call, const Shape& x, const Shape& weight) {
  const ConvTranspose2dOptions& o = call.options;
  Conv2dShape shape{};
  shape.batch = x[0], shape.out_height = x[1], shape.out_width = x[2], shape.out_channels = x[3];
  shape.in_channels = weight[3] * o.groups;
  shape.kernel_height = weight[1], shape.kernel_width = weight[2];
  shape.stride_height = o.stride[0], shape.stride_width = o.stride[1];
  shape.pad_top = o.padding.top, shape.pad_left = o.padding.left;
  shape.pad_bottom = o.padding.bottom, shape.pad_right = o.padding.right;
  shape.groups = o.groups;
  shape.dilation_height = o.dilation[0], shape.dilation_width = o.dilation[1];
  shape.in_height =
      (x[1] - 1) * o.stride[0] + shape.reach_height() - o.padding.top - o.padding.bottom + o.output_padding[0];
  shape.in_width =
      (x[2] - 1) * o.stride[1] + shape.reach_width() - o.padding.left - o.padding.right + o.output_padding[1];
  if (weight[1] < 1 || weight[2] < 1 || shape.in_height < 1 || shape.in_width < 1)
    throw InvalidArgument("{}: x {} and a kernel of {} x {} with this padding give {} x {} pixels, expected at least 1",
                          call.name, call.given.text(), weight[1], weight[2], shape.in_height, shape.in_width);
  return shape;
}

Tensor transposed_convolution(const Transposed& call, const Tensor& x, const Tensor& weight, const Tensor& read_weight,
                              const Tensor& bias) {
  check_sizes_of(call);
  check_operands(call, x, weight, bias);
  const Conv2dShape shape = shape_of_call(call, x.shape(), weight.shape());
  const Tensor y = empty_like(x, {shape.batch, shape.in_height, shape.in_width, shape.in_channels});
  kernels_of(x).conv2d_backward_data(shape, x, read_weight, y, stream_of(x));
  if (bias.defined()) kernels_of(x).bias(y, read_as(x, bias), stream_of(x));
  record<ConvTransposeNode>(y, {x, weight, bias}, std::vector{x, read_weight}, call.name, shape);
  return y;
}

}  // namespace

Tensor conv_transpose2d(const Tensor& input, const Tensor& weight, const Tensor& bias,
                        const ConvTranspose2dOptions& options) {
  check_activation("conv_transpose2d", "x (N, H, W, C)", input, 4);
  const Tensor x = autocast(input);
  check_input("conv_transpose2d", "weight (C, KH, KW, O)", weight, 4, &x.device());
  return transposed_convolution({"conv_transpose2d", options, input.shape()}, x, weight, read_as(x, weight), bias);
}

Tensor conv_transpose1d(const Tensor& input, const Tensor& weight, const Tensor& bias,
                        const ConvTranspose1dOptions& options) {
  check_activation("conv_transpose1d", "x (N, L, C)", input, 3);
  const Tensor x = autocast(input);
  check_input("conv_transpose1d", "weight (C, K, O)", weight, 3, &x.device());
  const Transposed call{"conv_transpose1d",
                        {.stride = {1, options.stride},
                         .padding = {0, options.padding.left, 0, options.padding.right},
                         .output_padding = {0, options.output_padding},
                         .groups = options.groups,
                         .dilation = {1, options.dilation}},
                        input.shape()};
  const Tensor filters = with_height(weight);  // (C, 1, K, O): the same memory
  return without_height(transposed_convolution(call, with_height(x), filters, read_as(x, filters), bias));
}

}  // namespace lockstep

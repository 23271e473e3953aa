#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/ops.h"
#include "src/autograd/engine/window.h"

namespace lockstep {

namespace {

Attributes description_of(const Pool2dShape& shape) {
  return {{"window", std::vector{shape.window_height, shape.window_width}},
          {"stride", std::vector{shape.stride_height, shape.stride_width}},
          {"padding", std::vector{shape.pad_top, shape.pad_left, shape.pad_bottom, shape.pad_right}}};
}

// `argmax` has two bytes per element. DType has no such type, so the node keeps a Buffer.
class MaxPool2dNode : public Node {
 public:
  MaxPool2dNode(std::vector<Tensor> inputs, const Pool2dShape& shape, Buffer argmax)
      : Node(std::move(inputs)), shape_(shape), argmax_(std::move(argmax)) {}
  const char* name() const override { return "max_pool2d"; }
  std::optional<Attributes> attributes() const override { return description_of(shape_); }

  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad)
        .max_pool2d_backward(shape_, result_grad, reinterpret_cast<const std::uint16_t*>(argmax_.data()), targets[0],
                             stream_of(result_grad));
  }

 private:
  void release_members() override { argmax_ = Buffer(); }

  Pool2dShape shape_;
  Buffer argmax_;
};

class AvgPool2dNode : public Node {
 public:
  AvgPool2dNode(std::vector<Tensor> inputs, const Pool2dShape& shape, bool count_padding)
      : Node(std::move(inputs)), shape_(shape), count_padding_(count_padding) {}
  const char* name() const override { return "avg_pool2d"; }
  std::optional<Attributes> attributes() const override {
    Attributes all = description_of(shape_);
    all["count_padding"] = std::int64_t{count_padding_};
    return all;
  }

  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad)
        .avg_pool2d_backward(shape_, count_padding_, result_grad, targets[0], stream_of(result_grad));
  }

 private:
  Pool2dShape shape_;
  bool count_padding_;
};

Pool2dShape pool_shape(const char* operation, const Shape& in, Size2 window, Size2 stride, const PaddingRule& padding) {
  for (const int axis : {0, 1})
    if (stride[axis] == 0) stride[axis] = window[axis];
  const WindowGeometry place = place_window(operation, {in[1], in[2]}, window, stride, padding);
  const Padding& pad = place.padding;
  if (pad.top >= window[0] || pad.bottom >= window[0] || pad.left >= window[1] || pad.right >= window[1])
    throw InvalidArgument(
        "{}: padding must be smaller than the window {} x {}, otherwise a window would contain no pixel", operation,
        window[0], window[1]);
  return {in[0],     in[1],     in[2],     in[3],   place.out_height, place.out_width, window[0],
          window[1], stride[0], stride[1], pad.top, pad.left,         pad.bottom,      pad.right};
}

Tensor max_pool(const char* operation, const Tensor& x, Size2 window, Size2 stride, const PaddingRule& padding) {
  constexpr std::int64_t kLargestWindow = 65'535;  // argmax is 16 bits wide
  if (window[0] > kLargestWindow || window[1] > kLargestWindow || window[0] * window[1] > kLargestWindow)
    throw InvalidArgument("{}: windows have at most {} elements, got {} x {}", operation, kLargestWindow, window[0],
                          window[1]);
  const Pool2dShape shape = pool_shape(operation, x.shape(), window, stride, padding);
  const Tensor y = empty_like(x, {shape.batch, shape.out_height, shape.out_width, shape.channels});
  const Buffer argmax = x.device().allocate(static_cast<std::size_t>(y.count()) * sizeof(std::uint16_t));
  kernels_of(x).max_pool2d(shape, x, y, reinterpret_cast<std::uint16_t*>(argmax.data()), stream_of(x));
  record<MaxPool2dNode>(y, {x}, shape, argmax);
  return y;
}

Tensor avg_pool(const char* operation, const Tensor& x, Size2 window, Size2 stride, const PaddingRule& padding,
                bool count_padding) {
  const Pool2dShape shape = pool_shape(operation, x.shape(), window, stride, padding);
  const Tensor y = empty_like(x, {shape.batch, shape.out_height, shape.out_width, shape.channels});
  kernels_of(x).avg_pool2d(shape, count_padding, x, y, stream_of(x));
  record<AvgPool2dNode>(y, {x}, shape, count_padding);
  return y;
}

}  // namespace

Tensor max_pool2d(const Tensor& x, Size2 window, const MaxPool2dOptions& options) {
  check_activation("max_pool2d", "x (N, H, W, C)", x, 4);
  return max_pool("max_pool2d", x, window, options.stride, options.padding);
}

Tensor avg_pool2d(const Tensor& x, Size2 window, const AvgPool2dOptions& options) {
  check_activation("avg_pool2d", "x (N, H, W, C)", x, 4);
  return avg_pool("avg_pool2d", x, window, options.stride, options.padding, options.count_include_pad);
}

Tensor global_avg_pool2d(const Tensor& x) {
  check_activation("global_avg_pool2d", "x (N, H, W, C)", x, 4);
  const Shape& in = x.shape();
  return reshape(avg_pool("global_avg_pool2d", x, {in[1], in[2]}, {1, 1}, Padding{}, true), {in[0], in[3]});
}

Tensor max_pool1d(const Tensor& x, std::int64_t window, const MaxPool1dOptions& options) {
  check_activation("max_pool1d", "x (N, L, C)", x, 3);
  return without_height(
      max_pool("max_pool1d", with_height(x), {1, window}, {1, options.stride}, with_height(options.padding)));
}

Tensor avg_pool1d(const Tensor& x, std::int64_t window, const AvgPool1dOptions& options) {
  check_activation("avg_pool1d", "x (N, L, C)", x, 3);
  return without_height(avg_pool("avg_pool1d", with_height(x), {1, window}, {1, options.stride},
                                 with_height(options.padding), options.count_include_pad));
}

}  // namespace lockstep

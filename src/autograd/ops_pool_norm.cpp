#include "lockstep/autograd/ops.h"
#include "src/autograd/record.h"
#include "src/autograd/typed.h"
#include "src/autograd/window.h"

namespace lockstep {

using typed::Pointer;

namespace {

// `argmax` has two bytes an element: DType has no such type, so that the node keeps the bare buffer.
class MaxPool2dNode : public Node {
 public:
  MaxPool2dNode(std::vector<Tensor> inputs, const Pool2dShape& shape, Buffer argmax)
      : Node(std::move(inputs)), shape_(shape), argmax_(std::move(argmax)) {}
  const char* name() const override { return "max_pool2d"; }

  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    LOCKSTEP_TYPED(result_grad, max_pool2d_backward, shape_, Pointer(result_grad), reinterpret_cast<const std::uint16_t*>(argmax_.data()),
                   Pointer(targets[0].memory()), targets[0].accumulate());
    argmax_ = Buffer();  // release() knows tensors only
  }

 private:
  Pool2dShape shape_;
  Buffer argmax_;
};

// Saved: x, the result and the scale, which is float32.
class LrnNode : public Node {
 public:
  LrnNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const LrnParams& params)
      : Node(std::move(inputs), std::move(saved)), params_(params) {}
  const char* name() const override { return "local_response_norm"; }

  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    LOCKSTEP_TYPED(result_grad, lrn_backward, params_, Pointer(saved(0)), Pointer(saved(1)), saved(2).data<float>(), Pointer(result_grad),
                   Pointer(targets[0].memory()), targets[0].accumulate());
  }

 private:
  LrnParams params_;
};

}  // namespace

Tensor max_pool2d(const Tensor& x, Size2 window, const MaxPool2dOptions& options) {
  check_activation("max_pool2d", "x (N, H, W, C)", x, 4);
  constexpr std::int64_t kLargestWindow = 65'535;  // argmax is 16 bits wide
  if (window[0] > kLargestWindow || window[1] > kLargestWindow || window[0] * window[1] > kLargestWindow)
    throw InvalidArgument("max_pool2d: windows have at most {} elements, got {} x {}", kLargestWindow, window[0], window[1]);
  const Size2 stride = {options.stride[0] == 0 ? window[0] : options.stride[0], options.stride[1] == 0 ? window[1] : options.stride[1]};
  const Shape& in = x.shape();
  const WindowGeometry place = place_window("max_pool2d", {in[1], in[2]}, window, stride, options.padding);
  const Padding& pad = place.padding;
  if (pad.top >= window[0] || pad.bottom >= window[0] || pad.left >= window[1] || pad.right >= window[1])
    throw InvalidArgument("max_pool2d: padding must be smaller than the window {} x {}, or a window would see no pixel", window[0],
                          window[1]);
  const Pool2dShape shape{in[0],     in[1],     in[2],     in[3],   place.out_height, place.out_width, window[0],
                          window[1], stride[0], stride[1], pad.top, pad.left,         pad.bottom,      pad.right};
  const Tensor y = Tensor::empty({in[0], place.out_height, place.out_width, in[3]}, x.dtype(), x.device());
  const Buffer argmax = x.device().allocate(static_cast<std::size_t>(y.count()) * sizeof(std::uint16_t));
  LOCKSTEP_TYPED(x, max_pool2d, shape, Pointer(x), Pointer(y), reinterpret_cast<std::uint16_t*>(argmax.data()));
  record<MaxPool2dNode>(y, {x}, shape, argmax);
  return y;
}

Tensor local_response_norm(const Tensor& x, const LrnOptions& options) {
  check_activation("local_response_norm", "x", x, -1);
  if (x.shape().dims() == 0) throw InvalidArgument("local_response_norm: x has no channel dimension");
  if (options.radius < 0) throw InvalidArgument("local_response_norm: radius {} is negative", options.radius);
  const std::int64_t channels = x.shape()[x.shape().dims() - 1];
  const LrnParams params{channels == 0 ? 0 : x.count() / channels, channels, options.radius, options.bias, options.alpha, options.beta};
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  const Tensor scale = Tensor::empty(x.shape(), DType::kFloat32, x.device());
  LOCKSTEP_TYPED(x, lrn, params, Pointer(x), Pointer(y), scale.data<float>());
  record<LrnNode>(y, {x}, std::vector{x, detached(y), scale}, params);
  return y;
}

}  // namespace lockstep

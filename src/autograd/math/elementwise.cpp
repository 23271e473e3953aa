#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/ops.h"

namespace lockstep {

namespace {

class BiasAddNode : public Node {
 public:
  using Node::Node;
  const char* name() const override { return "bias_add"; }
  std::optional<Attributes> attributes() const override { return Attributes(); }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    if (targets[1]) kernels_of(result_grad).bias_backward(result_grad, targets[1], stream_of(result_grad));
    targets[0].give(result_grad);
  }
};

// Saved: the result.
class ReLUNode : public Node {
 public:
  using Node::Node;
  const char* name() const override { return "relu"; }
  std::optional<Attributes> attributes() const override { return Attributes(); }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad).relu_backward(saved(0), result_grad, stream_of(result_grad));
    targets[0].give(result_grad);
  }
};

class ScaleNode : public Node {
 public:
  ScaleNode(std::vector<Tensor> inputs, float factor) : Node(std::move(inputs)), factor_(factor) {}
  const char* name() const override { return "scale"; }
  std::optional<Attributes> attributes() const override { return Attributes{{"factor", double{factor_}}}; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad).scale(result_grad, factor_, targets[0], stream_of(result_grad));
  }

 private:
  float factor_;
};

// Saved: the factor.
class ScaleByNode : public Node {
 public:
  using Node::Node;
  const char* name() const override { return "scale_by"; }
  std::optional<Attributes> attributes() const override { return Attributes(); }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad).scale_by(result_grad, saved(0), targets[0], stream_of(result_grad));
  }
};

}  // namespace

Tensor bias_add(const Tensor& x, const Tensor& bias) {
  check_activation("bias_add", "x", x);
  check_input("bias_add", "bias (C)", bias, 1, &x.device());
  const std::size_t dims = x.shape().dims();
  if (dims == 0 || x.shape()[dims - 1] != bias.count())
    throw InvalidArgument("bias_add: {} {} does not match the last dimension of x {}", name_argument("bias", bias),
                          bias.shape().text(), x.shape().text());
  const Tensor y = x.clone();
  kernels_of(x).bias(y, read_as(x, bias), stream_of(x));
  record<BiasAddNode>(y, {x, bias});
  return y;
}

Tensor relu(const Tensor& x) {
  check_activation("relu", "x", x);
  const Tensor y = empty_like(x);
  kernels_of(x).relu(x, y, stream_of(x));
  record<ReLUNode>(y, {x}, std::vector{detach(y)});
  return y;
}

Tensor scale(const Tensor& x, float factor) {
  check_activation("scale", "x", x);
  const Tensor y = empty_like(x);
  kernels_of(x).scale(x, factor, y, stream_of(x));
  record<ScaleNode>(y, {x}, factor);
  return y;
}

Tensor scale_by(const Tensor& given, const Tensor& given_factor) {
  const Tensor x = autocast_to_float32(given), factor = autocast_to_float32(given_factor);
  check_input("scale_by", "x", x);
  check_input("scale_by", "factor", factor, kAnyDims, &x.device());
  if (factor.count() != 1)
    throw InvalidArgument("scale_by: {} {} must be a scalar", name_argument("factor", factor), factor.shape().text());
  const Tensor y = empty_like(x);
  kernels_of(x).scale_by(x, factor, y, stream_of(x));
  record<ScaleByNode>(y, {x}, std::vector{detach(factor)});
  return y;
}

}  // namespace lockstep

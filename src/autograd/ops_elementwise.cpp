#include "lockstep/autograd/ops.h"
#include "src/autograd/record.h"

namespace lockstep {

namespace {

class BiasAddNode : public Node {
 public:
  using Node::Node;
  const char* name() const override { return "bias_add"; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const std::int64_t channels = input(1).count();
    if (targets[1])
      kernels_of(result_grad)
          .bias_backward(result_grad.data<float>(), targets[1].data(), rows_of(result_grad, channels), channels, targets[1].accumulate(),
                         stream_of(result_grad));
    targets[0].give(result_grad);
  }
};

// Saved: the result.
class ReluNode : public Node {
 public:
  using Node::Node;
  const char* name() const override { return "relu"; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad).relu_backward(saved(0).data<float>(), result_grad.data<float>(), result_grad.count(), stream_of(result_grad));
    targets[0].give(result_grad);
  }
};

class AddNode : public Node {
 public:
  using Node::Node;
  const char* name() const override { return "add"; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    // Both inputs have the same gradient, but only one may own its memory: the other gets a copy.
    const bool shared = targets[0].takes() && targets[1];
    targets[0].give(shared ? result_grad.clone() : result_grad);
    targets[1].give(result_grad);
  }
};

class ScaleNode : public Node {
 public:
  ScaleNode(std::vector<Tensor> inputs, float factor) : Node(std::move(inputs)), factor_(factor) {}
  const char* name() const override { return "scale"; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad)
        .scale(result_grad.data<float>(), factor_, targets[0].data(), result_grad.count(), targets[0].accumulate(), stream_of(result_grad));
  }

 private:
  float factor_;
};

class ReshapeNode : public Node {
 public:
  using Node::Node;
  const char* name() const override { return "reshape"; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override { targets[0].give(result_grad); }
};

}  // namespace

Tensor bias_add(const Tensor& x, const Tensor& bias) {
  check_input("bias_add", "x", x, -1);
  check_input("bias_add", "bias (C)", bias, 1, &x.device());
  const std::size_t dims = x.shape().dims();
  if (dims == 0 || x.shape()[dims - 1] != bias.count())
    throw InvalidArgument("bias_add: bias {} does not match the last dimension of x {}", bias.shape().text(), x.shape().text());
  const Tensor y = x.clone();
  kernels_of(x).bias(y.data<float>(), bias.data<float>(), rows_of(x, bias.count()), bias.count(), stream_of(x));
  record<BiasAddNode>(y, {x, bias});
  return y;
}

Tensor relu(const Tensor& x) {
  check_input("relu", "x", x, -1);
  const Tensor y = Tensor::empty(x.shape(), DType::kFloat32, x.device());
  kernels_of(x).relu(x.data<float>(), y.data<float>(), x.count(), stream_of(x));
  record<ReluNode>(y, {x}, std::vector{detached(y)});
  return y;
}

Tensor add(const Tensor& a, const Tensor& b) {
  check_input("add", "a", a, -1);
  check_input("add", "b", b, -1, &a.device());
  if (a.shape() != b.shape()) throw InvalidArgument("add: shapes {} and {} differ", a.shape().text(), b.shape().text());
  const Tensor y = Tensor::empty(a.shape(), DType::kFloat32, a.device());
  kernels_of(a).add(a.data<float>(), b.data<float>(), y.data<float>(), a.count(), stream_of(a));
  record<AddNode>(y, {a, b});
  return y;
}

Tensor scale(const Tensor& x, float factor) {
  check_input("scale", "x", x, -1);
  const Tensor y = Tensor::empty(x.shape(), DType::kFloat32, x.device());
  kernels_of(x).scale(x.data<float>(), factor, y.data<float>(), x.count(), false, stream_of(x));
  record<ScaleNode>(y, {x}, factor);
  return y;
}

Tensor reshape(const Tensor& x, const Shape& shape) {
  check_input("reshape", "x", x, -1);
  const Tensor y = x.reshaped(shape);
  record<ReshapeNode>(y, {x});
  return y;
}

Tensor flatten(const Tensor& x) {
  check_input("flatten", "x", x, -1);
  if (x.shape().dims() == 0) throw InvalidArgument("flatten: a scalar has no batch dimension");
  return reshape(x, {x.shape()[0], Shape(x.shape().extents().subspan(1)).count()});
}

}  // namespace lockstep

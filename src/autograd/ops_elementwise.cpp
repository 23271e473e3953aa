#include "lockstep/autograd/ops.h"
#include "src/autograd/record.h"
#include "src/autograd/typed.h"

namespace lockstep {

using typed::Pointer;

namespace {

class BiasAddNode : public Node {
 public:
  using Node::Node;
  const char* name() const override { return "bias_add"; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const std::int64_t channels = input(1).count();
    if (targets[1])
      LOCKSTEP_TYPED(result_grad, bias_backward, Pointer(result_grad), targets[1].data(), rows_of(result_grad, channels), channels,
                     targets[1].accumulate());
    targets[0].give(result_grad);
  }
};

// Saved: the result.
class ReLUNode : public Node {
 public:
  using Node::Node;
  const char* name() const override { return "relu"; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    LOCKSTEP_TYPED(result_grad, relu_backward, Pointer(saved(0)), Pointer(result_grad), result_grad.count());
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
    LOCKSTEP_TYPED(result_grad, scale, Pointer(result_grad), factor_, Pointer(targets[0].memory()), result_grad.count(),
                   targets[0].accumulate());
  }

 private:
  float factor_;
};

// Saved: the factor.
class ScaleByNode : public Node {
 public:
  using Node::Node;
  const char* name() const override { return "scale_by"; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad)
        .scale_by(result_grad.data<float>(), saved(0).data<float>(), targets[0].data(), result_grad.count(), targets[0].accumulate(),
                  stream_of(result_grad));
  }
};

class ReshapeNode : public Node {
 public:
  using Node::Node;
  const char* name() const override { return "reshape"; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override { targets[0].give(result_grad); }
};

}  // namespace

Tensor bias_add(const Tensor& x, const Tensor& bias) {
  check_activation("bias_add", "x", x, -1);
  check_input("bias_add", "bias (C)", bias, 1, &x.device());
  const std::size_t dims = x.shape().dims();
  if (dims == 0 || x.shape()[dims - 1] != bias.count())
    throw InvalidArgument("bias_add: bias {} does not match the last dimension of x {}", bias.shape().text(), x.shape().text());
  const Tensor y = x.clone();
  const Tensor read_bias = typed::copy_for(x, bias);
  LOCKSTEP_TYPED(x, bias, Pointer(y), Pointer(read_bias), rows_of(x, bias.count()), bias.count());
  record<BiasAddNode>(y, {x, bias});
  return y;
}

Tensor relu(const Tensor& x) {
  check_activation("relu", "x", x, -1);
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  LOCKSTEP_TYPED(x, relu, Pointer(x), Pointer(y), x.count());
  record<ReLUNode>(y, {x}, std::vector{detached(y)});
  return y;
}

Tensor add(const Tensor& a, const Tensor& b) {
  check_activation("add", "a", a, -1);
  check_activation("add", "b", b, -1, &a.device());
  if (a.dtype() != b.dtype()) throw InvalidArgument("add: {} and {} differ: cast() one of them", name_of(a.dtype()), name_of(b.dtype()));
  if (a.shape() != b.shape()) throw InvalidArgument("add: shapes {} and {} differ", a.shape().text(), b.shape().text());
  const Tensor y = Tensor::empty(a.shape(), a.dtype(), a.device());
  LOCKSTEP_TYPED(a, add, Pointer(a), Pointer(b), Pointer(y), a.count());
  record<AddNode>(y, {a, b});
  return y;
}

Tensor scale(const Tensor& x, float factor) {
  check_activation("scale", "x", x, -1);
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  LOCKSTEP_TYPED(x, scale, Pointer(x), factor, Pointer(y), x.count(), false);
  record<ScaleNode>(y, {x}, factor);
  return y;
}

Tensor scale_by(const Tensor& x, const Tensor& factor) {
  check_input("scale_by", "x", x, -1);
  check_input("scale_by", "factor", factor, -1, &x.device());
  if (factor.count() != 1) throw InvalidArgument("scale_by: the factor {} must be a scalar", factor.shape().text());
  const Tensor y = Tensor::empty(x.shape(), DType::kFloat32, x.device());
  kernels_of(x).scale_by(x.data<float>(), factor.data<float>(), y.data<float>(), x.count(), false, stream_of(x));
  record<ScaleByNode>(y, {x}, std::vector{detached(factor)});
  return y;
}

Tensor reshape(const Tensor& x, const Shape& shape) {
  check_activation("reshape", "x", x, -1);
  const Tensor y = x.reshaped(shape);
  record<ReshapeNode>(y, {x});
  return y;
}

Tensor flatten(const Tensor& x) {
  check_activation("flatten", "x", x, -1);
  if (x.shape().dims() == 0) throw InvalidArgument("flatten: a scalar has no batch dimension");
  return reshape(x, {x.shape()[0], Shape(x.shape().extents().subspan(1)).count()});
}

}  // namespace lockstep

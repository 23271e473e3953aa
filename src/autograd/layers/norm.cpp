#include "lockstep/autograd/normalization.h"

#include "lockstep/autograd/elementwise.h"
#include "src/autograd/math/recorded_sum.h"
#include "src/autograd/math/row_views.h"

namespace lockstep {

namespace {

// Inputs: x, weight, bias. Saved: x, rstd, then the mean and the weight if they exist.
class LayerNormNode : public Node {
 public:
  LayerNormNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const Shape& rows, const Shape& over, float eps,
                bool centred)
      : Node(std::move(inputs), std::move(saved)),
        rows_(rows),
        dims_(static_cast<std::int64_t>(over.dims())),
        eps_(eps),
        centred_(centred) {}
  const char* name() const override { return centred_ ? "layer_norm" : "rms_norm"; }
  std::optional<Attributes> attributes() const override { return Attributes{{"dims", dims_}, {"eps", double{eps_}}}; }

  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const InputView mean = centred_ ? InputView(saved(2)) : InputView();
    const InputView weight = input(1).defined() ? InputView(saved(centred_ ? 3 : 2)) : InputView();
    kernels_of(result_grad)
        .layer_norm_backward(in_shape(saved(0), rows_), weight, mean, saved(1), in_shape(result_grad, rows_),
                             out_shape(targets[0], rows_), targets[1], targets[2], stream_of(result_grad));
  }

 private:
  Shape rows_;
  std::int64_t dims_;  // the last ones, over which it normalises
  float eps_;
  bool centred_;
};

// Inputs: x, weight, bias. Saved: x, mean, rstd, then the weight if it exists.
class GroupNormNode : public Node {
 public:
  GroupNormNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const Shape& pixels, std::int64_t groups,
                float eps)
      : Node(std::move(inputs), std::move(saved)), pixels_(pixels), groups_(groups), eps_(eps) {}
  const char* name() const override { return "group_norm"; }
  std::optional<Attributes> attributes() const override {
    return Attributes{{"groups", groups_}, {"eps", double{eps_}}};
  }

  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const InputView weight = input(1).defined() ? InputView(saved(3)) : InputView();
    kernels_of(result_grad)
        .group_norm_backward(groups_, in_shape(saved(0), pixels_), weight, saved(1), saved(2),
                             in_shape(result_grad, pixels_), out_shape(targets[0], pixels_), targets[1], targets[2],
                             stream_of(result_grad));
  }

 private:
  Shape pixels_;
  std::int64_t groups_;
  float eps_;
};

struct NormCall {
  const char* operation;
  bool centred;
  float eps;
};

void check_parameters(const NormCall& call, const Tensor& x, const Shape& shape, const Tensor& weight,
                      const Tensor& bias) {
  if (!(call.eps >= 0)) throw InvalidArgument("{}: eps must not be negative, got {}", call.operation, call.eps);
  for (const auto& [what, parameter] : {std::pair("weight", &weight), std::pair("bias", &bias)}) {
    if (!parameter->defined()) continue;
    check_input(call.operation, what, *parameter, kAnyDims, &x.device());
    if (parameter->shape() != shape)
      throw InvalidArgument("{}: {} {} expected, got {}", call.operation, name_argument(what, *parameter), shape.text(),
                            parameter->shape().text());
  }
}

// x as (rows, number of elements of each mean).
Shape check_norm(const NormCall& call, const Tensor& x, const Shape& over, const Tensor& weight, const Tensor& bias) {
  check_activation(call.operation, "x", x);
  const auto extents = x.shape().extents();
  if (over.dims() == 0 || over.dims() > extents.size() || Shape(extents.last(over.dims())) != over)
    throw InvalidArgument("{}: the last dimensions of x must be {}, got x {}", call.operation, over.text(),
                          x.shape().text());
  check_parameters(call, x, over, weight, bias);
  return {count_of_first(x.shape(), extents.size() - over.dims()), over.count()};
}

struct NormOutput {
  Tensor y, rstd, mean;
};

NormOutput results_for(const NormCall& call, const Tensor& x, const Shape& rows) {
  const Tensor y = empty_like(x), rstd = empty_like(x, {rows[0]}, DType::kFloat32);
  return {y, rstd, call.centred ? empty_like(rstd) : Tensor()};
}

void record_norm(const NormCall& call, const NormOutput& result, const Tensor& x, const Shape& rows, const Shape& over,
                 const Tensor& weight, const Tensor& bias) {
  std::vector<Tensor> saved = {x, result.rstd};
  for (const Tensor* each : {&result.mean, &weight})
    if (each->defined()) saved.push_back(*each);
  record<LayerNormNode>(result.y, {x, weight, bias}, std::move(saved), rows, over, call.eps, call.centred);
}

// Statistics are float32 and the result is rounded once, so 16-bit x is not widened under AutoCast. A linear layer that
// follows would round the wide result to the same bits; a float32 sum (a norm after the shortcut) would not.
Tensor norm(const NormCall& call, const Tensor& x, const Shape& over, const Tensor& weight, const Tensor& bias) {
  const Shape rows = check_norm(call, x, over, weight, bias);
  const NormOutput result = results_for(call, x, rows);
  kernels_of(x).layer_norm(in_shape(x, rows), weight, bias, call.eps, out_shape(result.y, rows), result.mean,
                           result.rstd, stream_of(x));
  record_norm(call, result, x, rows, over, weight, bias);
  return result.y;
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Shape& over, const Tensor& weight, const Tensor& bias, float eps) {
  return norm({"layer_norm", true, eps}, x, over, weight, bias);
}

std::pair<Tensor, Tensor> add_layer_norm(const Tensor& a, const Tensor& b, const Shape& over, const Tensor& weight,
                                         const Tensor& bias, float eps) {
  const NormCall call{"add_layer_norm", true, eps};
  const bool are_alike =
      a.defined() && b.defined() && a.shape() == b.shape() && a.dtype() == b.dtype() && &a.device() == &b.device();
  if (!are_alike) {
    const Tensor sum = add(a, b);
    return {sum, norm(call, sum, over, weight, bias)};
  }
  const Shape rows = check_norm(call, a, over, weight, bias);
  const Tensor sum = empty_like(a);
  const NormOutput result = results_for(call, sum, rows);
  kernels_of(a).add_layer_norm(in_shape(a, rows), in_shape(b, rows), weight, bias, eps, out_shape(sum, rows),
                               out_shape(result.y, rows), result.mean, result.rstd, stream_of(a));
  record_sum(sum, a, b);
  record_norm(call, result, sum, rows, over, weight, bias);
  return {sum, result.y};
}

Tensor rms_norm(const Tensor& x, const Shape& over, const Tensor& weight, float eps) {
  return norm({"rms_norm", false, eps}, x, over, weight, {});
}

Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight, const Tensor& bias, float eps) {
  check_activation("group_norm", "x (N, ..., C)", x);
  const std::size_t dims = x.shape().dims();
  if (dims < 2) throw InvalidArgument("group_norm: x (N, ..., C) expected, got {}", x.shape().text());
  const std::int64_t samples = x.shape()[0], channels = x.shape()[dims - 1];
  if (groups < 1 || channels % groups != 0)
    throw InvalidArgument("group_norm: {} groups do not divide the {} channels of x {}", groups, channels,
                          x.shape().text());
  check_parameters({"group_norm", true, eps}, x, {channels}, weight, bias);
  const Shape pixels{samples, Shape(x.shape().extents().subspan(1, dims - 2)).count(), channels};
  const Tensor y = empty_like(x), mean = empty_like(x, {samples, groups}, DType::kFloat32), rstd = empty_like(mean);
  kernels_of(x).group_norm(groups, in_shape(x, pixels), weight, bias, eps, out_shape(y, pixels), mean, rstd,
                           stream_of(x));
  std::vector<Tensor> saved = {x, mean, rstd};
  if (weight.defined()) saved.push_back(weight);
  record<GroupNormNode>(y, {x, weight, bias}, std::move(saved), pixels, groups, eps);
  return y;
}

}  // namespace lockstep

#include <vector>

#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/ops.h"
#include "src/autograd/math/reduced.h"

namespace lockstep {

namespace {

// y = factor * sum of x: x_grad = factor * y_grad, repeated. `kept` is y's shape with extents of 1 where x was summed.
class ReduceNode : public Node {
 public:
  ReduceNode(std::vector<Tensor> inputs, const char* name, const Reduced& reduced, float factor)
      : Node(std::move(inputs)),
        name_(name),
        x_(input(0).shape()),
        kept_(reduced.shape(true)),
        dims_(reduced.dims()),
        factor_(factor) {}
  const char* name() const override { return name_; }
  std::optional<Attributes> attributes() const override { return Attributes{{"dims", dims_}}; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const KernelTable& kernels = kernels_of(result_grad);
    Stream& stream = stream_of(result_grad);
    if (factor_ != 1) kernels.scale(result_grad, factor_, result_grad, stream);
    const StridedCopy repeat{x_, broadcast_strides(kept_, x_), strides_of(x_)};
    kernels.copy_strided(repeat, result_grad, targets[0], stream);
  }

 private:
  const char* name_;
  Shape x_, kept_;
  std::vector<std::int64_t> dims_;
  float factor_;
};

Tensor reduce_sum(const char* name, const Tensor& x, const Reduced& reduced, bool keepdim, float factor) {
  const Tensor y = empty_like(x, reduced.shape(keepdim));
  const Shape kept = reduced.shape(true);
  kernels_of(x).sum(x, factor, OutputView(y.buffer().data(), y.dtype(), kept), stream_of(x));
  record<ReduceNode>(y, {x}, name, reduced, factor);
  return y;
}

// Saved: the indices.
class ExtremeOfLineNode : public Node {
 public:
  ExtremeOfLineNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const char* name, const Middle& place)
      : Node(std::move(inputs), std::move(saved)), name_(name), place_(place) {}
  const char* name() const override { return name_; }
  std::optional<Attributes> attributes() const override {
    return Attributes{{"lines", std::vector{place_.outer, place_.n, place_.inner}}};
  }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    OutputView x_grad = targets[0];
    x_grad.shape = place_.whole();
    kernels_of(result_grad)
        .gather_backward(1, viewed(saved(0), place_.reduced()), viewed(result_grad, place_.reduced()), x_grad,
                         stream_of(result_grad));
  }

 private:
  const char* name_;
  Middle place_;
};

struct Extreme {
  void (*KernelTable::*kernel)(In, Out, Out, Stream&);
  const char *name, *of_many, *noun;
};
constexpr Extreme kMax{&KernelTable::max, "max", "amax", "maximum"};
constexpr Extreme kMin{&KernelTable::min, "min", "amin", "minimum"};

MaxResult extreme_in_middle(const Extreme& extreme, const char* name, const Tensor& x, const Middle& place,
                            const Shape& result) {
  if (place.n == 0 && result.count() > 0)
    throw InvalidArgument("{}: x {} is empty, so it has no {}", name, x.shape().text(), extreme.noun);
  const Tensor values = empty_like(x, result), indices = empty_like(x, result, DType::kInt64);
  if (result.count() > 0) (kernels_of(x).*extreme.kernel)(viewed(x, place.whole()), values, indices, stream_of(x));
  record<ExtremeOfLineNode>(values, {x}, std::vector{indices}, extreme.name, place);
  return {values, indices};
}

MaxResult extreme_along(const Extreme& extreme, const char* name, const Tensor& x, int dim, bool keepdim) {
  check_activation(name, "x", x);
  const std::size_t along = dimension_of(name, dim, x.shape());
  return extreme_in_middle(extreme, name, x, Middle(x.shape(), along), Reduced(name, x.shape(), dim).shape(keepdim));
}

MaxResult extreme_of_all(const Extreme& extreme, const char* name, const Tensor& x) {
  check_activation(name, "x", x);
  return extreme_in_middle(extreme, name, x, Middle({x.count()}, 0), {});
}

Tensor extreme_of_dims(const Extreme& extreme, const Tensor& x, const Dims& dims, bool keepdim) {
  check_activation(extreme.of_many, "x", x);
  return reduce_as_one(
      x, Reduced(extreme.of_many, x.shape(), dims), keepdim, [&](const Tensor& ordered, const Middle& middle) {
        return extreme_in_middle(extreme, extreme.of_many, ordered, middle, {middle.outer, middle.inner}).values;
      });
}

// Saved: x as (outer, n, inner).
class ProdNode : public Node {
 public:
  using Node::Node;
  const char* name() const override { return "prod"; }
  std::optional<Attributes> attributes() const override { return Attributes(); }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad).prod_backward(saved(0), result_grad, targets[0], stream_of(result_grad));
  }
};

}  // namespace

Tensor sum(const Tensor& given, const Dims& dims, bool keepdim) {
  check_activation("sum", "x", given);
  const Tensor x = autocast_to_float32(given);
  return reduce_sum("sum", x, Reduced("sum", x.shape(), dims), keepdim, 1);
}

Tensor mean(const Tensor& x, const Dims& dims, bool keepdim) {
  check_activation("mean", "x", x);
  const Reduced reduced("mean", x.shape(), dims);
  return reduce_sum("mean", x, reduced, keepdim, 1 / static_cast<float>(reduced.count()));
}

MaxResult max(const Tensor& x, int dim, bool keepdim) { return extreme_along(kMax, "max", x, dim, keepdim); }
MaxResult min(const Tensor& x, int dim, bool keepdim) { return extreme_along(kMin, "min", x, dim, keepdim); }
Tensor max(const Tensor& x) { return extreme_of_all(kMax, "max", x).values; }
Tensor min(const Tensor& x) { return extreme_of_all(kMin, "min", x).values; }
Tensor amax(const Tensor& x, const Dims& dims, bool keepdim) { return extreme_of_dims(kMax, x, dims, keepdim); }
Tensor amin(const Tensor& x, const Dims& dims, bool keepdim) { return extreme_of_dims(kMin, x, dims, keepdim); }

Tensor argmax(const Tensor& x, int dim, bool keepdim) {
  const NoGrad no_grad;
  return extreme_along(kMax, "argmax", x, dim, keepdim).indices;
}
Tensor argmin(const Tensor& x, int dim, bool keepdim) {
  const NoGrad no_grad;
  return extreme_along(kMin, "argmin", x, dim, keepdim).indices;
}
Tensor argmax(const Tensor& x) {
  const NoGrad no_grad;
  return extreme_of_all(kMax, "argmax", x).indices;
}
Tensor argmin(const Tensor& x) {
  const NoGrad no_grad;
  return extreme_of_all(kMin, "argmin", x).indices;
}

Tensor prod(const Tensor& given, const Dims& dims, bool keepdim) {
  check_activation("prod", "x", given);
  const Tensor x = autocast_to_float32(given);
  return reduce_as_one(x, Reduced("prod", x.shape(), dims), keepdim, [](const Tensor& ordered, const Middle& middle) {
    const Tensor lines = reshape(ordered, middle.whole()), y = empty_like(lines, {middle.outer, middle.inner});
    kernels_of(lines).prod(lines, y, stream_of(lines));
    record<ProdNode>(y, {lines}, std::vector{lines});
    return y;
  });
}

}  // namespace lockstep

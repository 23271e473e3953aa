#include <array>
#include <vector>

#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/ops.h"
#include "src/autograd/math/dimensions.h"

namespace lockstep {

namespace {

// The dimensions of x that are reduced.
class Reduced {
 public:
  Reduced(const char* operation, const Shape& x, const Dims& dims) : x_(x) {
    if (dims.list.empty()) reduced_.fill(true);
    for (const int given : dims.list) {
      bool& is_reduced = reduced_[dimension_of(operation, given, x)];
      if (is_reduced) throw InvalidArgument("{}: dimension {} of shape {} is given twice", operation, given, x.text());
      is_reduced = true;
    }
  }

  // x's shape without the reduced dimensions, or with extents of 1 in their place if `keepdim`.
  Shape shape(bool keepdim) const {
    std::vector<std::int64_t> extents;
    for (std::size_t dim = 0; dim < x_.dims(); ++dim)
      if (keepdim || !reduced_[dim]) extents.push_back(reduced_[dim] ? 1 : x_[dim]);
    return Shape(std::span<const std::int64_t>(extents));
  }
  // The number of elements that are combined into one.
  std::int64_t count() const {
    std::int64_t product = 1;
    for (std::size_t dim = 0; dim < x_.dims(); ++dim) product *= reduced_[dim] ? x_[dim] : 1;
    return product;
  }
  // The dimensions that are kept, followed by those that are reduced.
  std::vector<int> kept_first() const {
    std::vector<int> order;
    for (const bool wanted : {false, true})
      for (std::size_t dim = 0; dim < x_.dims(); ++dim)
        if (reduced_[dim] == wanted) order.push_back(static_cast<int>(dim));
    return order;
  }

 private:
  Shape x_;
  std::array<bool, Shape::kMaxDims> reduced_{};
};

// y = factor * sum of x: x_grad = factor * y_grad, repeated. `kept` is y's shape with extents of 1 where x was summed.
class ReduceNode : public Node {
 public:
  ReduceNode(std::vector<Tensor> inputs, const char* name, const Shape& kept, float factor)
      : Node(std::move(inputs)), name_(name), x_(input(0).shape()), kept_(kept), factor_(factor) {}
  const char* name() const override { return name_; }
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
  float factor_;
};

Tensor reduce_sum(const char* name, const Tensor& x, const Reduced& reduced, bool keepdim, float factor) {
  const Tensor y = empty_like(x, reduced.shape(keepdim));
  const Shape kept = reduced.shape(true);
  kernels_of(x).sum(x, factor, OutputView(y.buffer().data(), y.dtype(), kept), stream_of(x));
  record<ReduceNode>(y, {x}, name, kept, factor);
  return y;
}

// x as (outer, n, inner), reduced over the middle dimension.
struct Middle {
  std::int64_t outer = 1, n = 1, inner = 1;

  Middle(const Shape& x, std::size_t dim) {
    for (std::size_t d = 0; d < x.dims(); ++d) (d < dim ? outer : d == dim ? n : inner) *= x[d];
  }
  Shape whole() const { return {outer, n, inner}; }
  Shape reduced() const { return {outer, 1, inner}; }
};

// Saved: the indices.
class MaxNode : public Node {
 public:
  MaxNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const Middle& place)
      : Node(std::move(inputs), std::move(saved)), place_(place) {}
  const char* name() const override { return "max"; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    OutputView x_grad = targets[0];
    x_grad.shape = place_.whole();
    kernels_of(result_grad)
        .gather_backward(1, viewed(saved(0), place_.reduced()), viewed(result_grad, place_.reduced()), x_grad,
                         stream_of(result_grad));
  }

 private:
  Middle place_;
};

MaxResult max_in_middle(const char* name, const Tensor& x, const Middle& place, const Shape& result) {
  if (place.n == 0 && result.count() > 0)
    throw InvalidArgument("{}: x {} is empty, so it has no maximum", name, x.shape().text());
  const Tensor values = empty_like(x, result), indices = empty_like(x, result, DType::kInt64);
  if (result.count() > 0) kernels_of(x).max(viewed(x, place.whole()), values, indices, stream_of(x));
  record<MaxNode>(values, {x}, std::vector{indices}, place);
  return {values, indices};
}

MaxResult max_along(const char* name, const Tensor& x, int dim, bool keepdim) {
  check_activation(name, "x", x);
  const std::size_t along = dimension_of(name, dim, x.shape());
  return max_in_middle(name, x, Middle(x.shape(), along), Reduced(name, x.shape(), dim).shape(keepdim));
}

MaxResult max_of_all(const char* name, const Tensor& x) {
  check_activation(name, "x", x);
  return max_in_middle(name, x, Middle({x.count()}, 0), {});
}

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

MaxResult max(const Tensor& x, int dim, bool keepdim) { return max_along("max", x, dim, keepdim); }
Tensor max(const Tensor& x) { return max_of_all("max", x).values; }

Tensor amax(const Tensor& x, const Dims& dims, bool keepdim) {
  check_activation("amax", "x", x);
  const Reduced reduced("amax", x.shape(), dims);
  const Shape kept = reduced.shape(false);
  const Tensor last = reshape(permute(x, reduced.kept_first()), {kept.count(), reduced.count()});
  return reshape(max_along("amax", last, 1, false).values, reduced.shape(keepdim));
}

Tensor argmax(const Tensor& x, int dim, bool keepdim) {
  const NoGrad no_grad;
  return max_along("argmax", x, dim, keepdim).indices;
}
Tensor argmax(const Tensor& x) {
  const NoGrad no_grad;
  return max_of_all("argmax", x).indices;
}

}  // namespace lockstep

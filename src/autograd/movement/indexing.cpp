#include "lockstep/autograd/indexing.h"

#include <vector>

#include "lockstep/autograd/embedding.h"
#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/ops.h"
#include "src/autograd/math/dimensions.h"

namespace lockstep {

namespace {

// The gradient of x is y_grad, with 0 at the places that were replaced; that of the source is y_grad at its places.
// Saved: the index.
class ScatterNode : public Node {
 public:
  ScatterNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, std::size_t dim, bool adds, float value = 0)
      : Node(std::move(inputs), std::move(saved)), dim_(dim), adds_(adds), value_(value) {}
  const char* name() const override { return adds_ ? "scatter_add" : "scatter"; }
  std::optional<Attributes> attributes() const override {
    return Attributes{{"dim", static_cast<std::int64_t>(dim_)}, {"value", double{value_}}};
  }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const KernelTable& kernels = kernels_of(result_grad);
    Stream& stream = stream_of(result_grad);
    if (targets.size() > 1 && targets[1]) kernels.gather(dim_, result_grad, saved(0), targets[1], stream);
    if (!targets[0]) return;
    if (!adds_) kernels.scatter(dim_, saved(0), constant_like(result_grad, 0), result_grad, stream);
    targets[0].give(result_grad);
  }

 private:
  std::size_t dim_;
  bool adds_;
  float value_;  // without a source
};

// Saved: the index.
class GatherNode : public Node {
 public:
  GatherNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, std::size_t dim)
      : Node(std::move(inputs), std::move(saved)), dim_(dim) {}
  const char* name() const override { return "gather"; }
  std::optional<Attributes> attributes() const override { return Attributes{{"dim", static_cast<std::int64_t>(dim_)}}; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad).gather_backward(dim_, saved(0), result_grad, targets[0], stream_of(result_grad));
  }

 private:
  std::size_t dim_;
};

// (n, the elements of each of the n slices)
Shape as_rows(const Shape& shape) { return {shape[0], shape[0] == 0 ? 0 : shape.count() / shape[0]}; }

// Saved: the index; and the places (y's shape) to which it is repeated, or nothing if x was read by rows.
class IndexSelectNode : public Node {
 public:
  IndexSelectNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, std::size_t dim)
      : Node(std::move(inputs), std::move(saved)), dim_(dim) {}
  const char* name() const override { return "index_select"; }
  std::optional<Attributes> attributes() const override { return Attributes{{"dim", static_cast<std::int64_t>(dim_)}}; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const KernelTable& kernels = kernels_of(result_grad);
    Stream& stream = stream_of(result_grad);
    const Tensor& places = saved(1);
    if (places.defined()) return kernels.gather_backward(dim_, places, result_grad, targets[0], stream);
    OutputView x_grad = targets[0];
    x_grad.shape = as_rows(x_grad.shape);
    kernels.embedding_backward(viewed(result_grad, as_rows(result_grad.shape())), saved(0), kNoPadding, x_grad, stream);
  }

 private:
  std::size_t dim_;
};

std::size_t check_scatter(const char* name, const Tensor& x, int dim, const Tensor& index) {
  check_activation(name, "x", x);
  const std::size_t along = dimension_of(name, dim, x.shape());
  check_input(name, "index", index, static_cast<int>(x.shape().dims()), &x.device(), DType::kInt64);
  for (std::size_t d = 0; d < x.shape().dims(); ++d)
    if (d != along && index.shape()[static_cast<std::int64_t>(d)] > x.shape()[static_cast<std::int64_t>(d)])
      throw InvalidArgument("{}: index {} is larger than x {} in dimension {}", name, index.shape().text(),
                            x.shape().text(), d);
  check_index(name, index, x.shape()[static_cast<std::int64_t>(along)]);
  return along;
}

// The part of the source that has the index's shape.
Tensor source_for(const char* name, const Tensor& x, const Tensor& index, const Tensor& source) {
  check_alike(name, "source", source, x, static_cast<int>(x.shape().dims()));
  if (source.shape() == index.shape()) return source;
  std::vector<Range> ranges;
  for (std::size_t d = 0; d < index.shape().dims(); ++d) {
    const auto at = static_cast<std::int64_t>(d);
    if (index.shape()[at] > source.shape()[at])
      throw InvalidArgument("{}: index {} is larger than source {} in dimension {}", name, index.shape().text(),
                            source.shape().text(), d);
    ranges.push_back({0, index.shape()[at]});
  }
  return slice(source, ranges);
}

}  // namespace

Tensor scatter(const Tensor& x, int dim, const Tensor& index, const Tensor& given) {
  const std::size_t along = check_scatter("scatter", x, dim, index);
  const Tensor source = source_for("scatter", x, index, given), y = x.clone();
  kernels_of(x).scatter(along, index, source, y, stream_of(x));
  record<ScatterNode>(y, {x, source}, std::vector{index}, along, false);
  return y;
}

Tensor scatter(const Tensor& x, int dim, const Tensor& index, float value) {
  const std::size_t along = check_scatter("scatter", x, dim, index);
  const Tensor y = x.clone();
  kernels_of(x).scatter(along, index, constant_like(x, value), y, stream_of(x));
  record<ScatterNode>(y, {x}, std::vector{index}, along, false, value);
  return y;
}

Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& given) {
  const std::size_t along = check_scatter("scatter_add", x, dim, index);
  const Tensor source = source_for("scatter_add", x, index, given), y = x.clone();
  OutputView sums = y;
  sums.accumulate = true;
  kernels_of(x).gather_backward(along, index, source, sums, stream_of(x));
  record<ScatterNode>(y, {x, source}, std::vector{index}, along, true);
  return y;
}

Tensor gather(const Tensor& x, int dim, const Tensor& index) {
  check_activation("gather", "x", x);
  const std::size_t along = dimension_of("gather", dim, x.shape());
  check_input("gather", "index", index, static_cast<int>(x.shape().dims()), &x.device(), DType::kInt64);
  for (std::size_t d = 0; d < x.shape().dims(); ++d)
    if (d != along && index.shape()[d] > x.shape()[d])
      throw InvalidArgument("gather: index {} is larger than x {} in dimension {}", index.shape().text(),
                            x.shape().text(), d);
  check_index("gather", index, x.shape()[along]);
  const Tensor y = empty_like(x, index.shape());
  kernels_of(x).gather(along, x, index, y, stream_of(x));
  record<GatherNode>(y, {x}, std::vector{index}, along);
  return y;
}

Tensor index_select(const Tensor& x, int dim, const Tensor& index) {
  check_activation("index_select", "x", x);
  const std::size_t along = dimension_of("index_select", dim, x.shape());
  check_input("index_select", "index", index, 1, &x.device(), DType::kInt64);
  check_index("index_select", index, x.shape()[static_cast<std::int64_t>(along)]);
  std::vector<std::int64_t> extents(x.shape().extents().begin(), x.shape().extents().end());
  extents[along] = index.count();
  const Shape result(std::span<const std::int64_t>{extents});
  const Tensor y = empty_like(x, result);
  // A GPU's kernel for embeddings has too few threads for few long rows.
  const bool is_float_on_cpu = x.dtype() == DType::kFloat32 && x.device().kind() == DeviceKind::kCpu;
  if (along == 0 && is_float_on_cpu && y.count() > 0) {
    const OutputView rows(y.buffer().data(), y.dtype(), as_rows(result));
    kernels_of(x).embedding(viewed(x, as_rows(x.shape())), index, rows, stream_of(x));
    record<IndexSelectNode>(y, {x}, std::vector{index, Tensor()}, along);
    return y;
  }
  const Tensor places = empty_like(index, result);
  StridedCopy repeat{places.shape(), {}, strides_of(places.shape())};
  repeat.in_strides[along] = 1;
  kernels_of(x).copy_strided(repeat, index, places, stream_of(x));
  kernels_of(x).gather(along, x, places, y, stream_of(x));
  record<IndexSelectNode>(y, {x}, std::vector{index, places}, along);
  return y;
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, float value) {
  check_activation("masked_fill", "x", x);
  return where(mask, constant_like(x, value), x);
}

}  // namespace lockstep

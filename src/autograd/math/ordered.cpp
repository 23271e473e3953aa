#include <vector>

#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/reductions.h"
#include "src/autograd/math/reduced.h"
#include "src/autograd/math/row_views.h"

namespace lockstep {

namespace {

class CumsumNode : public Node {
 public:
  CumsumNode(std::vector<Tensor> inputs, const Shape& lines, std::size_t dim)
      : Node(std::move(inputs)), lines_(lines), dim_(static_cast<std::int64_t>(dim)) {}
  const char* name() const override { return "cumsum"; }
  std::optional<Attributes> attributes() const override { return Attributes{{"dim", dim_}}; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad)
        .cumsum(/*reversed=*/true, viewed(result_grad, lines_), out_shape(targets[0], lines_), stream_of(result_grad));
  }

 private:
  Shape lines_;
  std::int64_t dim_;
};

// Saved: the indices (outer, kept, inner) of the elements of x (outer, n, inner).
class SortNode : public Node {
 public:
  SortNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const char* name, const Shape& lines,
           const Shape& kept, std::size_t dim, bool descending)
      : Node(std::move(inputs), std::move(saved)),
        name_(name),
        lines_(lines),
        kept_(kept),
        dim_(static_cast<std::int64_t>(dim)),
        descending_(descending) {}
  const char* name() const override { return name_; }
  std::optional<Attributes> attributes() const override {
    return Attributes{{"dim", dim_}, {"descending", std::int64_t{descending_}}};
  }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad)
        .gather_backward(1, viewed(saved(0), kept_), viewed(result_grad, kept_), out_shape(targets[0], lines_),
                         stream_of(result_grad));
  }

 private:
  const char* name_;
  Shape lines_, kept_;
  std::int64_t dim_;
  bool descending_;
};

// The first `kept` of each sorted line; all if it is negative.
SortResult first_of_sorted(const char* name, const Tensor& x, std::int64_t kept, int dim, bool descending) {
  constexpr std::int64_t kMost = std::int64_t{1} << 32;
  check_activation(name, "x", x);
  const std::size_t along = dimension_of(name, dim, x.shape());
  const Middle middle(x.shape(), along);
  if (middle.n >= kMost)
    throw InvalidArgument("{}: dimension {} of x {} is too long, expected fewer than 2^32 elements", name, dim,
                          x.shape().text());
  std::vector<std::int64_t> extents(x.shape().extents().begin(), x.shape().extents().end());
  extents[along] = kept < 0 ? middle.n : kept;
  const Shape lines = middle.whole(), first{middle.outer, extents[along], middle.inner}, result{std::span(extents)};
  const Tensor values = empty_like(x, result), indices = empty_like(x, result, DType::kInt64);
  kernels_of(x).sort(descending, viewed(x, lines), out_shape(values, first), out_shape(indices, first), stream_of(x));
  record<SortNode>(values, {x}, std::vector{indices}, name, lines, first, along, descending);
  return {values, indices};
}

}  // namespace

Tensor cumsum(const Tensor& given, int dim) {
  check_activation("cumsum", "x", given);
  const Tensor x = autocast_to_float32(given), y = empty_like(x);
  const std::size_t along = dimension_of("cumsum", dim, x.shape());
  const Shape lines = Middle(x.shape(), along).whole();
  kernels_of(x).cumsum(/*reversed=*/false, viewed(x, lines), out_shape(y, lines), stream_of(x));
  record<CumsumNode>(y, {x}, lines, along);
  return y;
}

SortResult sort(const Tensor& x, int dim, bool descending) { return first_of_sorted("sort", x, -1, dim, descending); }

SortResult topk(const Tensor& x, std::int64_t k, int dim, bool largest) {
  check_activation("topk", "x", x);
  const std::int64_t extent = x.shape()[dimension_of("topk", dim, x.shape())];
  if (k < 0 || k > extent)
    throw InvalidArgument("topk: got k = {} for dimension {} of x {}, expected 0 to {}", k, dim, x.shape().text(),
                          extent);
  return first_of_sorted("topk", x, k, dim, largest);
}

Tensor argsort(const Tensor& x, int dim, bool descending) {
  const NoGrad no_grad;
  return first_of_sorted("argsort", x, -1, dim, descending).indices;
}

}  // namespace lockstep

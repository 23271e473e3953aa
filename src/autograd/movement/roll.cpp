#include <vector>

#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/ops.h"
#include "src/autograd/math/dimensions.h"

namespace lockstep {

namespace {

// Copies from the gradient of y to that of x, which together write every element.
class RollNode : public Node {
 public:
  RollNode(std::vector<Tensor> inputs, std::vector<StridedCopy> copies, Attributes description)
      : Node(std::move(inputs)), copies_(std::move(copies)), description_(std::move(description)) {}
  const char* name() const override { return "roll"; }
  std::optional<Attributes> attributes() const override { return description_; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const OutputView x_grad = targets[0];
    for (const StridedCopy& copy : copies_)
      kernels_of(result_grad).copy_strided(copy, result_grad, x_grad, stream_of(result_grad));
  }

 private:
  std::vector<StridedCopy> copies_;
  Attributes description_;
};

// Slices of a dimension that lie together in both arrays: from `from` of one to `to` of the other.
StridedCopy slices(const Shape& shape, std::size_t along, std::int64_t from, std::int64_t to, std::int64_t count) {
  std::vector<std::int64_t> extents(shape.extents().begin(), shape.extents().end());
  extents[along] = count;
  const Strides strides = strides_of(shape);
  return {Shape(std::span<const std::int64_t>(extents)), strides, strides, from * strides[along], to * strides[along]};
}

}  // namespace

Tensor roll(const Tensor& x, std::int64_t shift, int dim) {
  check_place("roll", "x", x);
  const std::size_t along = dimension_of("roll", dim, x.shape());
  const std::int64_t extent = x.shape()[static_cast<std::int64_t>(along)];
  if (extent == 0) return reshape(x, x.shape());
  const std::int64_t moved = (shift % extent + extent) % extent;  // so many of the last slices become the first
  const Tensor y = empty_like(x);
  std::vector<StridedCopy> back;
  const auto move = [&](std::int64_t from, std::int64_t to, std::int64_t count) {
    if (count == 0) return;
    kernels_of(x).copy_strided(slices(x.shape(), along, from, to, count), x, y, stream_of(x));
    back.push_back(slices(x.shape(), along, to, from, count));
  };
  move(0, moved, extent - moved);
  move(extent - moved, 0, moved);
  record<RollNode>(y, {x}, std::move(back), Attributes{{"dim", static_cast<std::int64_t>(along)}, {"shift", shift}});
  return y;
}

}  // namespace lockstep

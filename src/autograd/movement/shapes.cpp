#include <algorithm>
#include <string>

#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/ops.h"
#include "src/autograd/math/dimensions.h"

namespace lockstep {

namespace {

// A result that was made by one copy per input; `backward` has the reverse copies. If they read all of an input, they
// write its entire gradient.
enum class Reads { kAll, kPart };

StridedCopy reversed(const StridedCopy& copy) {
  return {copy.extents, copy.out_strides, copy.in_strides, copy.out_offset, copy.in_offset};
}

class CopyNode : public Node {
 public:
  CopyNode(std::vector<Tensor> inputs, const char* name, std::vector<StridedCopy> copies, Reads reads,
           Attributes description)
      : Node(std::move(inputs)),
        name_(name),
        copies_(std::move(copies)),
        reads_(reads),
        description_(std::move(description)) {}
  const char* name() const override { return name_; }
  std::optional<Attributes> attributes() const override { return description_; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    for (std::size_t i = 0; i < targets.size(); ++i) {
      if (!targets[i]) continue;
      const OutputView x_grad = targets[i];
      if (reads_ == Reads::kPart && !x_grad.accumulate) fill_with(x_grad, constant_like(result_grad, 0));
      kernels_of(result_grad).copy_strided(reversed(copies_[i]), result_grad, x_grad, stream_of(result_grad));
    }
  }

 private:
  const char* name_;
  std::vector<StridedCopy> copies_;
  Reads reads_;
  Attributes description_;
};

// A result of one input.
Tensor copied(const char* name, const Tensor& x, const Shape& shape, const StridedCopy& copy, Reads reads,
              const Attributes& description) {
  const Tensor y = empty_like(x, shape);
  kernels_of(x).copy_strided(copy, x, y, stream_of(x));
  record<CopyNode>(y, {x}, name, std::vector{copy}, reads, description);
  return y;
}

class ReshapeNode : public Node {
 public:
  using Node::Node;
  const char* name() const override { return "reshape"; }
  std::optional<Attributes> attributes() const override { return Attributes(); }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    targets[0].give(result_grad);
  }
};

class BroadcastNode : public Node {
 public:
  using Node::Node;
  const char* name() const override { return "broadcast_to"; }
  std::optional<Attributes> attributes() const override { return Attributes(); }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    kernels_of(result_grad).sum(result_grad, 1, targets[0], stream_of(result_grad));
  }
};

using Extents = std::vector<std::int64_t>;
Extents extents_of(const Tensor& x) { return {x.shape().extents().begin(), x.shape().extents().end()}; }
Shape shape_of(const Extents& extents) { return Shape(std::span<const std::int64_t>(extents)); }

// As Python's slice.indices(): the first index, and the number of indices.
struct Indices {
  std::int64_t first, count;
  Indices(const Range& range, std::int64_t extent) {
    const auto inside = [extent](std::int64_t at) {
      return std::clamp<std::int64_t>(at < 0 ? at + extent : at, 0, extent);
    };
    first = inside(range.start);
    const std::int64_t last = inside(range.stop) - 1 - first;  // relative to the first
    count = last < 0 ? 0 : last / range.step + 1;
  }
};

void check_like_first(const char* name, const Tensor& x, const Tensor& first, std::size_t place, std::size_t along) {
  const std::string what = fmt::format("tensor {}", place);
  check_place(name, what, x, static_cast<int>(first.shape().dims()), &first.device());
  bool fits = x.dtype() == first.dtype();
  for (std::size_t dim = 0; dim < x.shape().dims(); ++dim)
    fits = fits && (dim == along || x.shape()[dim] == first.shape()[dim]);
  if (!fits)
    throw InvalidArgument(
        "{}: {} is {} {}, but the first one is {} {}: types, and extents in dimensions other than {}, must be equal",
        name, what, lockstep::name_of(x.dtype()), x.shape().text(), lockstep::name_of(first.dtype()),
        first.shape().text(), along);
}

}  // namespace

Tensor reshape(const Tensor& x, const Shape& shape) {
  check_place("reshape", "x", x);
  const Tensor y = x.reshaped(shape);
  record<ReshapeNode>(y, {x});
  return y;
}

Tensor flatten(const Tensor& x) {
  check_place("flatten", "x", x);
  if (x.shape().dims() == 0) throw InvalidArgument("flatten: a scalar has no batch dimension");
  return reshape(x, {x.shape()[0], Shape(x.shape().extents().subspan(1)).count()});
}

Tensor unsqueeze(const Tensor& x, int dim) {
  check_place("unsqueeze", "x", x);
  Extents extents = extents_of(x);
  const int dims = static_cast<int>(extents.size());
  if (dim < -dims - 1 || dim > dims)
    throw InvalidArgument("unsqueeze: dimension {} is invalid for shape {}: expected {} to {}", dim, x.shape().text(),
                          -dims - 1, dims);
  extents.insert(extents.begin() + (dim < 0 ? dim + dims + 1 : dim), 1);
  return reshape(x, shape_of(extents));
}

Tensor squeeze(const Tensor& x, int dim) {
  check_place("squeeze", "x", x);
  const std::size_t at = dimension_of("squeeze", dim, x.shape());
  if (x.shape()[at] != 1)
    throw InvalidArgument("squeeze: dimension {} of shape {} must have extent 1", dim, x.shape().text());
  Extents extents = extents_of(x);
  extents.erase(extents.begin() + static_cast<std::ptrdiff_t>(at));
  return reshape(x, shape_of(extents));
}

Tensor permute(const Tensor& x, const std::vector<int>& dims) {
  check_place("permute", "x", x);
  if (dims.size() != x.shape().dims())
    throw InvalidArgument("permute: got {} dimensions for shape {}, expected each of its {} once", dims.size(),
                          x.shape().text(), x.shape().dims());
  Extents extents, order;
  std::array<bool, Shape::kMaxDims> seen{};
  const Strides strides = strides_of(x.shape());
  StridedCopy copy;
  for (const int given : dims) {
    const std::size_t dim = dimension_of("permute", given, x.shape());
    if (std::exchange(seen[dim], true))
      throw InvalidArgument("permute: dimension {} of shape {} is given twice", given, x.shape().text());
    copy.in_strides[extents.size()] = strides[dim];
    extents.push_back(x.shape()[dim]);
    order.push_back(static_cast<std::int64_t>(dim));
  }
  copy.extents = shape_of(extents);
  copy.out_strides = strides_of(copy.extents);
  return copied("permute", x, copy.extents, copy, Reads::kAll, {{"dims", order}});
}

Tensor transpose(const Tensor& x, int dim0, int dim1) {
  check_place("transpose", "x", x);
  std::vector<int> dims(x.shape().dims());
  for (std::size_t dim = 0; dim < dims.size(); ++dim) dims[dim] = static_cast<int>(dim);
  std::swap(dims[dimension_of("transpose", dim0, x.shape())], dims[dimension_of("transpose", dim1, x.shape())]);
  return permute(x, dims);
}

Tensor slice(const Tensor& x, const std::vector<Range>& ranges) {
  check_place("slice", "x", x);
  if (ranges.size() > x.shape().dims())
    throw InvalidArgument("slice: got {} ranges for shape {}, expected at most {}", ranges.size(), x.shape().text(),
                          x.shape().dims());
  Extents extents = extents_of(x), starts, steps;
  StridedCopy copy;
  copy.in_strides = strides_of(x.shape());
  for (std::size_t dim = 0; dim < ranges.size(); ++dim) {
    if (ranges[dim].step < 1)
      throw InvalidArgument("slice: got step {} for dimension {}, expected 1 or more", ranges[dim].step, dim);
    const Indices indices(ranges[dim], extents[dim]);
    copy.in_offset += indices.first * copy.in_strides[dim];
    copy.in_strides[dim] *= std::min(ranges[dim].step, extents[dim]);  // a larger step leaves one index
    extents[dim] = indices.count;
    starts.push_back(indices.first), steps.push_back(ranges[dim].step);
  }
  copy.extents = shape_of(extents);
  copy.out_strides = strides_of(copy.extents);
  return copied("slice", x, copy.extents, copy, Reads::kPart, {{"starts", starts}, {"steps", steps}});
}

Tensor slice(const Tensor& x, int dim, const Range& range) {
  check_place("slice", "x", x);
  std::vector<Range> ranges(dimension_of("slice", dim, x.shape()) + 1);
  ranges.back() = range;
  return slice(x, ranges);
}

Tensor concat(const std::vector<Tensor>& tensors, int dim) {
  if (tensors.empty()) throw InvalidArgument("concat: got no tensors, expected at least one");
  if (const auto wide = autocast_to_widest(tensors)) return concat(*wide, dim);
  const Tensor& first = tensors[0];
  check_place("concat", "tensor 0", first);
  const std::size_t along = dimension_of("concat", dim, first.shape());
  Extents extents = extents_of(first);
  extents[along] = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    check_like_first("concat", tensors[i], first, i, along);
    extents[along] += tensors[i].shape()[along];
  }
  const Tensor y = empty_like(first, shape_of(extents));
  const Strides strides = strides_of(y.shape());
  std::vector<StridedCopy> copies;
  std::int64_t at = 0;
  for (const Tensor& x : tensors) {
    copies.push_back({x.shape(), strides_of(x.shape()), strides, 0, at * strides[along]});
    kernels_of(x).copy_strided(copies.back(), x, y, stream_of(x));
    at += x.shape()[along];
  }
  record<CopyNode>(y, tensors, "concat", std::move(copies), Reads::kAll,
                   Attributes{{"dim", static_cast<std::int64_t>(along)}});
  return y;
}

Tensor stack(const std::vector<Tensor>& tensors, int dim) {
  std::vector<Tensor> slabs;
  slabs.reserve(tensors.size());
  for (const Tensor& x : tensors) slabs.push_back(unsqueeze(x, dim));
  return concat(slabs, dim);
}

std::vector<Tensor> split(const Tensor& x, const std::vector<std::int64_t>& sizes, int dim) {
  check_place("split", "x", x);
  const std::size_t along = dimension_of("split", dim, x.shape());
  std::int64_t left = x.shape()[along];
  bool fits = true;
  std::string given;
  for (const std::int64_t size : sizes) {
    given += (given.empty() ? "" : ", ") + std::to_string(size);
    fits = fits && size >= 0 && size <= left;
    left -= fits ? size : 0;
  }
  if (!fits || left != 0)
    throw InvalidArgument(
        "split: sizes {} must not be negative, and must add up to {}, the extent of dimension {} of {}", given,
        x.shape()[along], dim, x.shape().text());
  std::vector<Tensor> parts;
  std::int64_t start = 0;
  for (const std::int64_t size : sizes) {
    parts.push_back(slice(x, static_cast<int>(along), {start, start + size}));
    start += size;
  }
  return parts;
}

std::vector<Tensor> split(const Tensor& x, std::int64_t size, int dim) {
  check_place("split", "x", x);
  if (size < 1) throw InvalidArgument("split: got parts of {} elements, expected 1 or more", size);
  std::vector<std::int64_t> sizes;
  std::int64_t left = x.shape()[dimension_of("split", dim, x.shape())];
  do {  // an extent of 0 makes one part
    sizes.push_back(std::min(left, size));
    left -= size;
  } while (left > 0);
  return split(x, sizes, dim);
}

Tensor pad(const Tensor& x, const std::vector<std::array<std::int64_t, 2>>& widths, float value) {
  check_activation("pad", "x", x);
  if (widths.size() != x.shape().dims())
    throw InvalidArgument("pad: got {} pairs of widths for shape {}, expected one per dimension", widths.size(),
                          x.shape().text());
  Extents extents = extents_of(x);
  for (std::size_t dim = 0; dim < extents.size(); ++dim) {
    const auto [before, after] = widths[dim];
    if (before < 0 || after < 0)
      throw InvalidArgument(
          "pad: got widths {} and {} for dimension {}, expected 0 or more: use slice() to remove elements", before,
          after, dim);
    extents[dim] += before + after;
  }
  const Tensor y = empty_like(x, shape_of(extents));
  const Strides strides = strides_of(y.shape());
  StridedCopy copy{x.shape(), strides_of(x.shape()), strides};
  Extents before, after;
  for (std::size_t dim = 0; dim < extents.size(); ++dim) {
    copy.out_offset += widths[dim][0] * strides[dim];
    before.push_back(widths[dim][0]), after.push_back(widths[dim][1]);
  }
  fill_with(y, constant_like(x, value));
  kernels_of(x).copy_strided(copy, x, y, stream_of(x));
  record<CopyNode>(y, {x}, "pad", std::vector{copy}, Reads::kAll,
                   Attributes{{"before", before}, {"after", after}, {"value", double{value}}});
  return y;
}

Tensor broadcast_to(const Tensor& x, const Shape& shape) {
  check_activation("broadcast_to", "x", x);
  if (x.shape().dims() > shape.dims() || broadcast_shape("broadcast_to", x.shape(), shape) != shape)
    throw InvalidArgument("broadcast_to: x {} cannot be repeated to fill {}", x.shape().text(), shape.text());
  const Tensor y = empty_like(x, shape);
  kernels_of(x).copy_strided({shape, broadcast_strides(x.shape(), shape), strides_of(shape)}, x, y, stream_of(x));
  record<BroadcastNode>(y, {x});
  return y;
}

Tensor flip(const Tensor& x, const std::vector<int>& dims) {
  check_place("flip", "x", x);
  StridedCopy copy{x.shape(), strides_of(x.shape()), strides_of(x.shape())};
  std::array<bool, Shape::kMaxDims> seen{};
  Extents flipped;
  for (const int given : dims) {
    const std::size_t dim = dimension_of("flip", given, x.shape());
    flipped.push_back(static_cast<std::int64_t>(dim));
    if (std::exchange(seen[dim], true))
      throw InvalidArgument("flip: dimension {} of shape {} is given twice", given, x.shape().text());
    copy.in_offset += copy.in_strides[dim] * std::max<std::int64_t>(0, x.shape()[dim] - 1);
    copy.in_strides[dim] *= -1;
  }
  return copied("flip", x, x.shape(), copy, Reads::kAll, {{"dims", flipped}});
}

Tensor repeat(const Tensor& x, const std::vector<std::int64_t>& times) {
  check_activation("repeat", "x", x);
  if (times.size() < x.shape().dims())
    throw InvalidArgument("repeat: got {} numbers for x {}, expected one per dimension, or more for new ones in front",
                          times.size(), x.shape().text());
  for (const std::int64_t each : times)
    if (each < 0) throw InvalidArgument("repeat: got {} times, expected 0 or more", each);
  Extents extents(times.size() - x.shape().dims(), 1);
  for (const std::int64_t extent : x.shape().extents()) extents.push_back(extent);
  Tensor y = reshape(x, shape_of(extents));
  for (std::size_t dim = 0; dim < times.size(); ++dim) {
    if (times[dim] == 1) continue;
    Extents before(extents.begin(), extents.begin() + static_cast<std::ptrdiff_t>(dim));
    const std::int64_t outer = shape_of(before).count(), rest = outer == 0 ? 0 : y.count() / outer;
    extents[dim] *= times[dim];
    y = reshape(broadcast_to(reshape(y, {outer, 1, rest}), {outer, times[dim], rest}), shape_of(extents));
  }
  return y;
}
Tensor tile(const Tensor& x, const std::vector<std::int64_t>& times) {
  check_activation("tile", "x", x);
  Extents all(times.size() < x.shape().dims() ? x.shape().dims() - times.size() : 0, 1);
  all.insert(all.end(), times.begin(), times.end());
  return repeat(x, all);
}

Tensor repeat_interleave(const Tensor& x, std::int64_t times, int dim) {
  check_activation("repeat_interleave", "x", x);
  if (times < 0) throw InvalidArgument("repeat_interleave: got {} times, expected 0 or more", times);
  const std::size_t along = dimension_of("repeat_interleave", dim, x.shape());
  Extents extents = extents_of(x);
  const Extents upto(extents.begin(), extents.begin() + static_cast<std::ptrdiff_t>(along) + 1);
  const std::int64_t outer = shape_of(upto).count(), rest = outer == 0 ? 0 : x.count() / outer;
  extents[along] *= times;
  return reshape(broadcast_to(reshape(x, {outer, 1, rest}), {outer, times, rest}), shape_of(extents));
}

std::vector<Tensor> chunk(const Tensor& x, std::int64_t chunks, int dim) {
  check_place("chunk", "x", x);
  if (chunks < 1) throw InvalidArgument("chunk: got {} chunks, expected 1 or more", chunks);
  const std::int64_t extent = x.shape()[dimension_of("chunk", dim, x.shape())];
  return split(x, std::max<std::int64_t>(1, (extent + chunks - 1) / chunks), dim);
}

}  // namespace lockstep

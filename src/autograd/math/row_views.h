// Views of a tensor's elements under another shape, for kernels that process rows.
#pragma once

#include "lockstep/autograd/extend.h"

namespace lockstep {

inline InputView in_shape(const InputView& view, const Shape& shape) { return {view.data, view.dtype, shape}; }
inline OutputView out_shape(const OutputView& view, const Shape& shape) {
  return {view.data, view.dtype, shape, view.accumulate};
}

// The product of the first `dims` extents.
inline std::int64_t count_of_first(const Shape& shape, std::size_t dims) {
  return Shape(shape.extents().first(dims)).count();
}

// (product of all extents except the last, the last); a tensor of one dimension is one row. Throws InvalidArgument for
// a scalar.
inline Shape rows_of(std::string_view operation, const Tensor& x) {
  const std::size_t dims = x.shape().dims();
  if (dims == 0) throw InvalidArgument("{}: x is a scalar, at least one dimension is expected", operation);
  return {count_of_first(x.shape(), dims - 1), x.shape()[dims - 1]};
}

// The shape with another last extent.
inline Shape with_last(const Shape& shape, std::int64_t last) {
  std::vector<std::int64_t> extents(shape.extents().begin(), shape.extents().end());
  extents.back() = last;
  return Shape(extents);
}

}  // namespace lockstep

#include "src/autograd/math/dimensions.h"

#include <algorithm>
#include <array>

#include "lockstep/autograd/extend.h"
#include "lockstep/core/error.h"

namespace lockstep {

std::size_t dimension_of(std::string_view operation, int dim, const Shape& shape) {
  const int dims = static_cast<int>(shape.dims());
  if (dim < -dims || dim >= dims)
    throw InvalidArgument("{}: dimension {} does not exist in shape {}: expected {} to {}", operation, dim,
                          shape.text(), -dims, dims - 1);
  return static_cast<std::size_t>(dim < 0 ? dim + dims : dim);
}

Shape broadcast_shape(std::string_view operation, const Shape& a, const Shape& b, const Tensor& a_operand,
                      const Tensor& b_operand) {
  std::array<std::int64_t, Shape::kMaxDims> extents{};
  const std::size_t dims = std::max(a.dims(), b.dims());
  for (std::size_t dim = 0; dim < dims; ++dim) {
    const std::int64_t of_a = dim + a.dims() < dims ? 1 : a[dim + a.dims() - dims],
                       of_b = dim + b.dims() < dims ? 1 : b[dim + b.dims() - dims];
    if (of_a != of_b && of_a != 1 && of_b != 1)
      throw InvalidArgument(
          "{}: shapes {} and {} do not match: extents {} and {}, dimension {} from the last; expected equal extents, "
          "or 1 "
          "where an operand "
          "repeats",
          operation, name_argument(a.text(), a_operand), name_argument(b.text(), b_operand), of_a, of_b, dims - dim);
    extents[dim] = of_a == 1 ? of_b : of_a;
  }
  return Shape(std::span(extents).first(dims));
}

Tensor constant_like(const Tensor& x, float value) {
  const Tensor scalar = Tensor::full({}, value, x.device());
  if (x.dtype() == DType::kFloat32) return scalar;
  const Tensor rounded = empty_like(x, {});
  kernels_of(x).convert(scalar, rounded, stream_of(x));
  return rounded;
}

void check_index(std::string_view operation, const Tensor& index, std::int64_t bound) {
  if (index.device().kind() != DeviceKind::kCpu) return;
  const auto values = index.span<std::int64_t>();
  bool is_outside = false;
  for (const std::int64_t value : values)
    is_outside |= static_cast<std::uint64_t>(value) >= static_cast<std::uint64_t>(bound);
  if (!is_outside) return;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i] < 0 || values[i] >= bound)
      throw InvalidArgument("{}: index {} at position {} is outside 0..{}", operation, values[i], i, bound - 1);
}

void fill_with(const OutputView& out, const Tensor& scalar) {
  kernels_of(scalar).copy_strided({out.shape, {}, strides_of(out.shape)}, scalar, out, stream_of(scalar));
}

Tensor filled_like(const Tensor& x, float value) {
  const Tensor y = empty_like(x);
  fill_with(y, constant_like(x, value));
  return y;
}

}  // namespace lockstep

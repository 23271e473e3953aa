#include "lockstep/core/shape.h"

#include <algorithm>

#include "lockstep/core/error.h"

namespace lockstep {

Shape::Shape(std::span<const std::int64_t> extents) : dims_(extents.size()) {
  if (extents.size() > kMaxDims)
    throw InvalidArgument("Shape: got {} dimensions, at most {} are supported", extents.size(), kMaxDims);
  std::copy(extents.begin(), extents.end(), extents_.begin());
  for (const std::int64_t extent : extents)
    if (extent < 0) throw InvalidArgument("Shape: negative extent in {}", text());
}

void Shape::refuse_dimension(std::int64_t dim) const {
  if (dims_ == 0) throw InvalidArgument("Shape: dimension {} does not exist: a scalar has no dimensions", dim);
  throw InvalidArgument("Shape: dimension {} does not exist in {}: expected {} to {}; negative ones count from the end",
                        dim, text(), -static_cast<std::int64_t>(dims_), dims_ - 1);
}

std::int64_t Shape::count() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : extents())
    if (__builtin_mul_overflow(product, extent, &product))
      throw InvalidArgument("Shape: {} has more elements than 64 bits can count", text());
  return product;
}

std::string Shape::text() const {
  std::string list;
  for (const std::int64_t extent : extents()) list += fmt::format("{}{}", list.empty() ? "" : ", ", extent);
  return "(" + list + ")";
}

}  // namespace lockstep

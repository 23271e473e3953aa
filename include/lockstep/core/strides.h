// Distances in memory between an array's elements, by dimension; broadcasting, transposing and slicing are described by
// them.
#pragma once

#include <array>
#include <cstdint>

#include "lockstep/core/shape.h"

#pragma GCC visibility push(default)
namespace lockstep {

using Strides = std::array<std::int64_t, Shape::kMaxDims>;  // in elements

// Strides of a row-major array.
inline Strides strides_of(const Shape& shape) {
  Strides strides{};
  std::int64_t stride = 1;
  for (std::size_t dim = shape.dims(); dim-- > 0; stride *= shape[dim]) strides[dim] = stride;
  return strides;
}

// Strides of an array that is repeated to fill the shape `to`, by NumPy's rule: dimensions are aligned at the last one,
// and those of extent 1 repeat.
inline Strides broadcast_strides(const Shape& shape, const Shape& to) {
  const Strides own = strides_of(shape);
  const std::size_t missing = to.dims() - shape.dims();
  Strides strides{};
  for (std::size_t dim = 0; dim < shape.dims(); ++dim) strides[missing + dim] = shape[dim] == 1 ? 0 : own[dim];
  return strides;
}

// Copies elements of one array to places in another: in[in_offset + sum i_d in_strides_d] to out[out_offset + sum i_d
// out_strides_d] for each index i below `extents`. No two elements go to the same place.
struct StridedCopy {
  Shape extents;
  Strides in_strides{}, out_strides{};
  std::int64_t in_offset = 0, out_offset = 0;
};

}  // namespace lockstep
#pragma GCC visibility pop

// A loop over several arrays at once, in row-major order of its extents; each array has its own strides, for
// broadcasting (a stride of 0), transposing and slicing. Adjacent dimensions that are contiguous in all arrays are
// merged, so most loops have one or two dimensions.
#pragma once

#include <array>
#include <cstdint>

#include "lockstep/core/strides.h"

namespace lockstep {

template <int kArrays> struct StridedLoop {
  int dims = 0;
  std::int64_t extents[Shape::kMaxDims] = {};  // plain arrays: CUDA kernels take this by value
  std::int64_t strides[kArrays][Shape::kMaxDims] = {};

  StridedLoop(const Shape& shape, const std::array<Strides, kArrays>& of) {
    for (std::size_t dim = 0; dim < shape.dims(); ++dim) {
      if (shape[dim] == 1) continue;
      bool merges = dims > 0;
      for (int a = 0; a < kArrays && merges; ++a) merges = strides[a][dims - 1] == of[a][dim] * shape[dim];
      const int at = merges ? dims - 1 : dims++;
      extents[at] = merges ? extents[at] * shape[dim] : shape[dim];
      for (int a = 0; a < kArrays; ++a) strides[a][at] = of[a][dim];
    }
  }

  std::int64_t count() const {
    std::int64_t product = 1;
    for (int dim = 0; dim < dims; ++dim) product *= extents[dim];
    return product;
  }
  // Counts from the last dimension: extent(0) is the innermost one, 1 if there is none.
  std::int64_t extent(int from_last) const { return from_last < dims ? extents[dims - 1 - from_last] : 1; }
  std::int64_t stride(int array, int from_last) const {
    return from_last < dims ? strides[array][dims - 1 - from_last] : 0;
  }
};

// Calls visit(offsets), with one offset per array, for each index of all dimensions except the last `inner`, in
// row-major order.
template <int kArrays, typename Visit> void for_each_outer(const StridedLoop<kArrays>& loop, int inner, Visit&& visit) {
  if (loop.count() == 0) return;
  const int outer = loop.dims > inner ? loop.dims - inner : 0;
  std::array<std::int64_t, Shape::kMaxDims> index{};
  std::array<std::int64_t, kArrays> offsets{};
  while (true) {
    visit(offsets);
    int dim = outer - 1;
    for (; dim >= 0; --dim) {
      for (int a = 0; a < kArrays; ++a) offsets[a] += loop.strides[a][dim];
      if (++index[dim] < loop.extents[dim]) break;
      for (int a = 0; a < kArrays; ++a) offsets[a] -= loop.strides[a][dim] * loop.extents[dim];
      index[dim] = 0;
    }
    if (dim < 0) return;
  }
}

}  // namespace lockstep

// The offsets of a thread's element in a StridedLoop.
#pragma once

#include <algorithm>
#include <limits>

#include "kernels/cuda/fast_division.cuh"
#include "kernels/strided_loop.h"

namespace lockstep::cuda {

// A StridedLoop for a kernel, whose extents are divisors.
template <int kArrays, typename Number> struct DividedLoop {
  explicit DividedLoop(const StridedLoop<kArrays>& loop) : dims(loop.dims) {
    for (int dim = 0; dim < dims; ++dim) {
      extents[dim] = Divisor<Number>(loop.extents[dim]);
      for (int array = 0; array < kArrays; ++array) strides[array][dim] = static_cast<Number>(loop.strides[array][dim]);
    }
  }
  int dims;
  Divisor<Number> extents[Shape::kMaxDims];
  Number strides[kArrays][Shape::kMaxDims] = {};
};

// Calls `call` with the DividedLoop of a loop. Indices are short if the loop has so few elements and short strides,
// none of them negative; offsets never are, because the loop may walk through a part of a larger array.
template <int kArrays, typename Call> void with_divided(const StridedLoop<kArrays>& loop, Call&& call) {
  Index largest = loop.count();
  for (const auto& strides : loop.strides)
    for (int dim = 0; dim < loop.dims; ++dim)
      largest = std::max(largest, strides[dim] < 0 ? std::numeric_limits<Index>::max() : strides[dim]);
  with_index_of(largest, [&]<typename Number>(Number) { call(DividedLoop<kArrays, Number>(loop)); });
}

// One offset per array, in elements.
template <int kArrays> struct Offsets { Index of[kArrays]; };

// The offsets of element i of the loop, in row-major order.
template <int kArrays, typename Number>
__device__ inline Offsets<kArrays> offsets_at(const DividedLoop<kArrays, Number>& loop, Index i) {
  Offsets<kArrays> offsets{};
  auto rest = static_cast<Number>(i);
  for (int dim = loop.dims - 1; dim >= 0; --dim) {
    const Divided<Number> at = dim == 0 ? Divided<Number>{0, rest} : loop.extents[dim].divide(rest);
    rest = at.quotient;
#pragma unroll
    for (int array = 0; array < kArrays; ++array)
      offsets.of[array] += static_cast<Index>(at.remainder) * loop.strides[array][dim];
  }
  return offsets;
}

}  // namespace lockstep::cuda

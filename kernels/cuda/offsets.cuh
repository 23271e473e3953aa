// The offsets of a thread's element in a StridedLoop.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/strided_loop.h"

namespace lockstep::cuda {

// One offset per array, in elements.
template <int kArrays> struct Offsets { Index of[kArrays]; };

// The offsets of element i of the loop, in row-major order.
template <int kArrays> __device__ inline Offsets<kArrays> offsets_at(const StridedLoop<kArrays>& loop, Index i) {
  Offsets<kArrays> offsets{};
  for (int dim = loop.dims - 1; dim >= 0; --dim) {
    const Index extent = loop.extents[dim], at = dim == 0 ? i : i % extent;
    i /= extent;
#pragma unroll
    for (int array = 0; array < kArrays; ++array) offsets.of[array] += at * loop.strides[array][dim];
  }
  return offsets;
}

}  // namespace lockstep::cuda

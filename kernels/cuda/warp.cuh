// Sums and maxima over a warp, in a fixed order; all 32 lanes must call them, and all get the result.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace lockstep::cuda {

inline constexpr int kWarpsOfBlock = kThreads / 32;

template <typename T> __device__ T warp_sum(T value) {
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}
__device__ inline float warp_max(float value) {
  for (int distance = 16; distance > 0; distance /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
  return value;
}

// One warp per row: its first row, and the distance to its next one.
__device__ inline Index first_row_of_warp() {
  return static_cast<Index>(blockIdx.x) * kWarpsOfBlock + threadIdx.x / 32;
}
__device__ inline Index warps_of_grid() { return static_cast<Index>(gridDim.x) * kWarpsOfBlock; }

}  // namespace lockstep::cuda

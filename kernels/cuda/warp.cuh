// Sums and maxima over a warp, in a fixed order; every lane has the result, and all 32 must call.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace lockstep::cuda {

inline constexpr int kWarpsOfBlock = kThreads / 32;

__device__ inline float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}
__device__ inline float warp_max(float value) {
  for (int distance = 16; distance > 0; distance /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
  return value;
}

// A warp a row: its first row, and how far it is to the next.
__device__ inline Index first_row_of_warp() {
  return static_cast<Index>(blockIdx.x) * kWarpsOfBlock + threadIdx.x / 32;
}
__device__ inline Index warps_of_grid() { return static_cast<Index>(gridDim.x) * kWarpsOfBlock; }

}  // namespace lockstep::cuda

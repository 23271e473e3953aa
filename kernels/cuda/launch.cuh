// Common parts of the kernel files: grid sizes, checked launches, sums over a block.
#pragma once

#include <algorithm>

#include "kernels/cuda/stream.h"

namespace lockstep::cuda {

inline constexpr int kThreads = 256;

// The number of blocks for `items` of work: enough to fill any GPU several times; the kernel's grid-stride loop does
// the rest.
inline unsigned blocks_for(Index items, Index per_block = kThreads) {
  constexpr Index kMostBlocks = 16 * 1024;
  return static_cast<unsigned>(std::clamp<Index>((items + per_block - 1) / per_block, 1, kMostBlocks));
}

// Code that plain C++ cannot express. Tests compile kernels as plain C++ with their own header in place of
// cuda_runtime.h.
#ifdef __CUDACC__
// Does nothing for an empty range, because a grid of 0 blocks is an error in CUDA.
#define LOCKSTEP_LAUNCH(kernel, blocks, threads, shared_bytes, stream, ...)                   \
  do {                                                                                        \
    kernel<<<blocks, threads, shared_bytes, ::lockstep::cuda::native(stream)>>>(__VA_ARGS__); \
    LOCKSTEP_CUDA(cudaGetLastError());                                                        \
  } while (false)

// The dynamic shared memory of the launch.
template <typename T> __device__ T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char lockstep_dynamic_shared[];
  return reinterpret_cast<T*>(lockstep_dynamic_shared);
}
#endif

__device__ inline Index first_item() { return static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline Index stride_of_grid() { return static_cast<Index>(gridDim.x) * blockDim.x; }

// Sums over the threads of a block in a fixed order, so the result is reproducible bit for bit. All threads must call
// it; thread 0 gets the sum.
template <int kBlockThreads, typename T> __device__ T sum_of_block(T value) {
  static_assert(kBlockThreads % 32 == 0);
  __shared__ T warps[kBlockThreads / 32];
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_down_sync(0xffffffffu, value, distance);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  T sum = 0;
  if (threadIdx.x == 0)
    for (int warp = 0; warp < kBlockThreads / 32; ++warp) sum += warps[warp];
  __syncthreads();
  return sum;
}

}  // namespace lockstep::cuda

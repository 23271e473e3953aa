// A GPU's programming model on the CPU: the part of CUDA that kernels/cuda uses, so that its files compile as plain C++
// and run without a GPU. It replaces the toolkit's header of this name. See blocks.h for what it checks and what it
// cannot.
#pragma once

#include <math.h>  // NOLINT: kernels call isnan() and expf() without std::

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/kernels/emulated_cuda/blocks.h"

#define __global__
#define __device__
#define __shared__ static  // blocks run one after the other; the next one finds the previous one's values
#define __grid_constant__

using dim3 = emulated_cuda::Dim3;
#define threadIdx (::emulated_cuda::place().thread)
#define blockIdx (::emulated_cuda::place().block)
#define blockDim (::emulated_cuda::place().block_size)
#define gridDim (::emulated_cuda::place().grid)

using std::max;
using std::min;

struct alignas(16) float4 {
  float x, y, z, w;
};

// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming): CUDA's names.
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
// Only used for counts, whose sum does not depend on the order.
inline unsigned atomicAdd(unsigned* address, unsigned value) {
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
inline float atomicExch(float* address, float value) { return std::exchange(*address, value); }

inline void __syncthreads() { emulated_cuda::barrier(0); }
inline void __syncwarp() { emulated_cuda::warp_barrier(); }
inline int __syncthreads_or(int predicate) { return emulated_cuda::barrier(predicate); }

template <typename T> T exchange_lanes(unsigned mask, T value, int lane) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = emulated_cuda::exchange(mask, bits, lane);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
template <typename T> T __shfl_xor_sync(unsigned mask, T value, int lane_mask) {
  return exchange_lanes(mask, value, emulated_cuda::lane() ^ lane_mask);
}
template <typename T> T __shfl_sync(unsigned mask, T value, int lane) { return exchange_lanes(mask, value, lane); }
// A lane without a lane at this distance above, or below, keeps its value.
template <typename T> T __shfl_down_sync(unsigned mask, T value, int delta) {
  const int lane = emulated_cuda::lane();
  return exchange_lanes(mask, value, lane + delta < 32 ? lane + delta : lane);
}
template <typename T> T __shfl_up_sync(unsigned mask, T value, int delta) {
  const int lane = emulated_cuda::lane();
  return exchange_lanes(mask, value, lane >= delta ? lane - delta : lane);
}

// A testing::HostStream, on which work is queued. Null: the CPU's stream, on which work runs at once.
using cudaStream_t = void*;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidConfiguration = 9 };
inline const char* cudaGetErrorName(cudaError_t) { return "cudaErrorInvalidConfiguration"; }
inline const char* cudaGetErrorString(cudaError_t) { return "invalid configuration argument"; }
inline cudaError_t& pending_launch_error() {
  thread_local cudaError_t error = cudaSuccess;
  return error;
}
inline cudaError_t cudaGetLastError() { return std::exchange(pending_launch_error(), cudaSuccess); }

inline cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  emulated_cuda::on_stream(stream, [=] { std::memset(memory, value, bytes); });
  return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
// Called before graphs of cuDNN are destroyed; queued work has copies of the emulated ones.
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

struct cudaFuncAttributes {};
template <typename Kernel> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, Kernel*) { return cudaSuccess; }
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
template <typename Kernel> cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute, int bytes) {
  return emulated_cuda::allow_shared(reinterpret_cast<const void*>(kernel), static_cast<std::size_t>(bytes))
             ? cudaSuccess
             : cudaErrorInvalidConfiguration;
}
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)

namespace lockstep::cuda {

// Arguments are copied, as in a launch.
#define LOCKSTEP_LAUNCH(kernel, blocks, threads, shared_bytes, stream, ...)                                       \
  do {                                                                                                            \
    const dim3 lockstep_grid = blocks;                                                                            \
    const dim3 lockstep_block = threads;                                                                          \
    const std::size_t lockstep_shared = shared_bytes;                                                             \
    const auto lockstep_kernel = kernel;                                                                          \
    if (!::emulated_cuda::is_valid(reinterpret_cast<const void*>(lockstep_kernel), lockstep_grid, lockstep_block, \
                                   lockstep_shared)) {                                                            \
      pending_launch_error() = cudaErrorInvalidConfiguration;                                                     \
    } else {                                                                                                      \
      auto lockstep_arguments = std::make_tuple(__VA_ARGS__);                                                     \
      ::emulated_cuda::on_stream(::lockstep::cuda::native(stream), [=]() mutable {                                \
        ::emulated_cuda::launch(lockstep_grid, lockstep_block, lockstep_shared, #kernel,                          \
                                [&] { std::apply(lockstep_kernel, lockstep_arguments); });                        \
      });                                                                                                         \
    }                                                                                                             \
    LOCKSTEP_CUDA(cudaGetLastError());                                                                            \
  } while (false)

template <typename T> T* dynamic_shared() { return reinterpret_cast<T*>(::emulated_cuda::dynamic_shared()); }

}  // namespace lockstep::cuda

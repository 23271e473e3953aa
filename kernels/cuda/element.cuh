// The element types of kernels: float, and the 16-bit ones, which are widened when they are read and rounded to nearest when written.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/launch.cuh"
#include "lockstep/core/dtype.h"

namespace lockstep::cuda {

using Half = __half;
using BFloat = __nv_bfloat16;

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(Half value) { return __half2float(value); }
__device__ inline float widen(BFloat value) { return __bfloat162float(value); }

__device__ inline void write(float& out, float value) { out = value; }
__device__ inline void write(Half& out, float value) { out = __float2half_rn(value); }
__device__ inline void write(BFloat& out, float value) { out = __float2bfloat16_rn(value); }

// A gradient: written, or added to what is there.
template <typename T>
__device__ void store(T& out, float value, bool accumulate) {
  write(out, accumulate ? widen(out) + value : value);
}

// So many at a time that a thread moves them by one instruction; the pointer must be aligned to all of them.
template <typename T, int count>
struct alignas(sizeof(T) * count) Pack {
  T values[count];
};

template <typename T, int count>
bool is_aligned_to_pack(const T* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % sizeof(Pack<T, count>) == 0;
}

// Calls `call` with a pointer of the 16-bit type that `type` names: as with_half(type, [&](auto* of) { kernel(like(of, x)); }).
template <typename Call>
void with_half(DType type, Call&& call) {
  switch (type) {
    case DType::kFloat16:
      return call(static_cast<Half*>(nullptr));
    case DType::kBFloat16:
      return call(static_cast<BFloat*>(nullptr));
    default:
      throw_no_half(type);
  }
}
template <typename T>
const T* like(T*, const void* pointer) {
  return static_cast<const T*>(pointer);
}
template <typename T>
T* like(T*, void* pointer) {
  return static_cast<T*>(pointer);
}

}  // namespace lockstep::cuda

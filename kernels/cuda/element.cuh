// The element types of kernels: float, and 16-bit floats, which are converted to float when read and rounded to nearest
// when written.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/launch.cuh"
#include "lockstep/core/view.h"

namespace lockstep {

template <> inline constexpr DType kDTypeOf<__half> = DType::kFloat16;
template <> inline constexpr DType kDTypeOf<__nv_bfloat16> = DType::kBFloat16;

}  // namespace lockstep

namespace lockstep::cuda {

using Half = __half;
using BFloat = __nv_bfloat16;

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(Half value) { return __half2float(value); }
__device__ inline float widen(BFloat value) { return __bfloat162float(value); }

__device__ inline void write(float& out, float value) { out = value; }
__device__ inline void write(Half& out, float value) { out = __float2half_rn(value); }
__device__ inline void write(BFloat& out, float value) { out = __float2bfloat16_rn(value); }

// Stores a gradient: overwrites the value or adds to it.
template <typename T> __device__ void store(T& out, float value, bool accumulate) {
  write(out, accumulate ? widen(out) + value : value);
}

// Several elements that a thread moves by one instruction; the pointer must be aligned to all of them.
template <typename T, int count> struct alignas(sizeof(T) * count) Pack { T values[count]; };

template <typename T, int count> bool is_aligned_to_pack(const T* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % sizeof(Pack<T, count>) == 0;
}

template <int count, typename T> __device__ const Pack<T, count>& pack_at(const T* first) {
  return *reinterpret_cast<const Pack<T, count>*>(first);
}
template <int count, typename T> __device__ Pack<T, count>& pack_at(T* first) {
  return *reinterpret_cast<Pack<T, count>*>(first);
}

// Calls `call` with a null pointer to the C++ type of the float type `type`:
//   with_float(x.dtype, [&]<typename T>(T*) { run(x.as<T>(), y.as<T>()); });
template <typename Call> void with_float(DType type, Call&& call) {
  switch (type) {
    case DType::kFloat32: return call(static_cast<float*>(nullptr));
    case DType::kFloat16: return call(static_cast<Half*>(nullptr));
    case DType::kBFloat16: return call(static_cast<BFloat*>(nullptr));
    default: throw_no_float(type);
  }
}

}  // namespace lockstep::cuda

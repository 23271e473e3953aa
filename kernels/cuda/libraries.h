// cuBLASLt and cuDNN on a stream: handles, settings, and conversion of their errors.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>

#include <cstddef>
#include <cstdint>

#include "lockstep/core/kernels.h"

namespace lockstep::cuda {

// Throws Error with the call, its place in the source, and the library's reason.
[[noreturn]] void throw_cublas_error(cublasStatus_t status, const char* call, const char* file, int line);
[[noreturn]] void throw_cudnn_error(cudnnStatus_t status, const char* call, const char* file, int line);

#define LOCKSTEP_CUBLAS(call)                                                                    \
  do {                                                                                           \
    if (const cublasStatus_t lockstep_status = (call); lockstep_status != CUBLAS_STATUS_SUCCESS) \
      ::lockstep::cuda::throw_cublas_error(lockstep_status, #call, __FILE__, __LINE__);          \
  } while (false)
#define LOCKSTEP_CUDNN(call)                                                                   \
  do {                                                                                         \
    if (const cudnnStatus_t lockstep_status = (call); lockstep_status != CUDNN_STATUS_SUCCESS) \
      ::lockstep::cuda::throw_cudnn_error(lockstep_status, #call, __FILE__, __LINE__);         \
  } while (false)

// This thread's handles for the current device; created on first use and kept until the process ends.
cublasLtHandle_t cublas_handle();
cudnnHandle_t cudnn_handle(Stream& stream);  // bound to the stream

inline constexpr std::size_t kCudnnAlignment = 16;  // of all addresses that our graphs get; cudnn-frontend's default
inline bool is_aligned_for_cudnn(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % kCudnnAlignment == 0;
}

// The libraries' choice between speed and repeatable bits. By default float32 convolutions use TF32 (float's range and
// 10 bits of fraction, several times as fast), as PyTorch's do, and two runs may differ in the last bits.
// LOCKSTEP_DETERMINISTIC=1 changes the defaults, so that a run has the bits of the last one and convolutions the
// precision of float32. Replicas are equal bit for bit in either case.
struct MathSettings {
  bool tf32_products = false;     // LOCKSTEP_TF32=1
  bool tf32_convolutions = true;  // LOCKSTEP_TF32=0; LOCKSTEP_DETERMINISTIC=1 unless LOCKSTEP_TF32=1
  // Of one product or convolution; attention may have four times as much. LOCKSTEP_CUDA_WORKSPACE_MIB
  std::size_t workspace_bytes = std::size_t{64} << 20;
  // true: measure cuDNN's likeliest engines (engine_tuning.h) for a shape that comes several times and use the fastest;
  // false: use the one that its heuristics put first. With true, another run or rank may choose another engine and
  // round differently. LOCKSTEP_CUDNN_AUTOTUNE; false if LOCKSTEP_DETERMINISTIC=1
  bool autotune = true;
  long tuning_seconds = 60;  // of the process, for building and measuring engines; LOCKSTEP_CUDNN_TUNING_S
  // true: also use engines whose sums have no fixed order. LOCKSTEP_CUDNN_NONDETERMINISTIC; false if
  // LOCKSTEP_DETERMINISTIC=1
  bool nondeterministic = true;
};
const MathSettings& math_settings();  // read once
MathSettings read_math_settings();    // throws InvalidArgument if two variables contradict each other

}  // namespace lockstep::cuda

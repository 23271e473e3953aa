// cuBLASLt and cuDNN on a stream: handles, settings, and conversion of their errors.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>

#include <cstddef>

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

// The precision of float32 products, and settings of convolutions. TF32 has float's range and 10 bits of fraction:
// several times as fast, off by default.
struct MathSettings {
  bool tf32 = false;  // LOCKSTEP_TF32=1
  // Of one product or convolution; attention may have four times as much. LOCKSTEP_CUDA_WORKSPACE_MIB
  std::size_t workspace_bytes = std::size_t{64} << 20;
  // true: measure cuDNN's ten likeliest engines once per shape of convolution and use the fastest; false: use the one
  // that its heuristics put first. Either choice gives the same bits in every step of a run; with true, another run or
  // rank may choose another engine and round differently. LOCKSTEP_CUDNN_AUTOTUNE=0
  bool autotune = true;
  // true: also use convolutions and gradients of attention whose sums have no fixed order, to measure the cost of
  // reproducibility.
  // LOCKSTEP_CUDNN_NONDETERMINISTIC=1
  bool nondeterministic = false;
};
const MathSettings& math_settings();

}  // namespace lockstep::cuda

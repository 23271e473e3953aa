// cuBLASLt and cuDNN on a stream: handles, settings, and their errors as ours.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>

#include <cstddef>

#include "lockstep/core/kernels.h"

namespace lockstep::cuda {

// Throws Error: the call, its place, and the library's reason.
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

// This thread's handles for the current device; made at the first use, and left to the end of the process.
cublasLtHandle_t cublas_handle();
cudnnHandle_t cudnn_handle(Stream& stream);  // set to the stream

// The precision of float32 products. TF32 keeps float's range and 10 bits of its fraction: several times as fast, off
// by default.
struct MathSettings {
  bool tf32 = false;                                    // LOCKSTEP_TF32=1
  std::size_t workspace_bytes = std::size_t{64} << 20;  // of one product or convolution; LOCKSTEP_CUDA_WORKSPACE_MIB
  // Convolutions: the fastest of cuDNN's ten likeliest ways by measuring each once a shape; false: the one that its
  // heuristics put first. Both give the same bits in every step of a run; another run, or another rank, may measure
  // otherwise and round otherwise. LOCKSTEP_CUDNN_AUTOTUNE=0
  bool autotune = true;
  // Convolutions whose sums may come in another order every time: to see what the same bits cost.
  // LOCKSTEP_CUDNN_NONDETERMINISTIC=1
  bool nondeterministic = false;
};
const MathSettings& math_settings();

}  // namespace lockstep::cuda

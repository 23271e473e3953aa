// Handles of cuBLASLt and cuDNN by thread and device, and the environment's settings for their arithmetic.
#include <map>

#include "kernels/cuda/libraries.h"
#include "kernels/cuda/stream.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"

namespace lockstep::cuda {

namespace {

int current_device() {
  int device = 0;
  LOCKSTEP_CUDA(cudaGetDevice(&device));
  return device;
}

}  // namespace

void throw_cublas_error(cublasStatus_t status, const char* call, const char* file, int line) {
  throw Error("cuBLAS: {} failed at {}:{}: {}", call, file, line, cublasLtGetStatusString(status));
}
void throw_cudnn_error(cudnnStatus_t status, const char* call, const char* file, int line) {
  throw Error("cuDNN: {} failed at {}:{}: {}", call, file, line, cudnnGetErrorString(status));
}

// Kept until the process ends, because the driver may be gone when a thread ends.
cublasLtHandle_t cublas_handle() {
  thread_local std::map<int, cublasLtHandle_t> handles;
  auto& handle = handles[current_device()];
  if (handle == nullptr) LOCKSTEP_CUBLAS(cublasLtCreate(&handle));
  return handle;
}

cudnnHandle_t cudnn_handle(Stream& stream) {
  thread_local std::map<int, cudnnHandle_t> handles;
  const cudaStream_t queue = native(stream);
  auto& handle = handles[current_device()];
  if (handle == nullptr) LOCKSTEP_CUDNN(cudnnCreate(&handle));
  LOCKSTEP_CUDNN(cudnnSetStream(handle, queue));
  return handle;
}

const MathSettings& math_settings() {
  static const MathSettings kSettings = [] {
    MathSettings settings;
    settings.tf32 = env::integer(env::kTf32, 0, 1).value_or(0) == 1;
    settings.autotune = env::integer(env::kCudnnAutotune, 0, 1).value_or(1) == 1;
    settings.nondeterministic = env::integer(env::kCudnnNondeterministic, 0, 1).value_or(0) == 1;
    if (const auto mib = env::integer(env::kCudaWorkspace, 0, 1 << 20))
      settings.workspace_bytes = static_cast<std::size_t>(*mib) << 20;
    return settings;
  }();
  return kSettings;
}

}  // namespace lockstep::cuda

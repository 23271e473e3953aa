// Handles of cuBLASLt and cuDNN by thread and device, and the environment's settings for their arithmetic.
#include <map>
#include <optional>

#include "kernels/cuda/libraries.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/engine_tuning.h"
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

MathSettings read_math_settings() {
  const auto is_set = [](const char* name) -> std::optional<bool> {
    const auto value = env::integer(name, 0, 1);
    return value ? std::optional(*value == 1) : std::nullopt;
  };
  const bool deterministic = is_set(env::kDeterministic).value_or(false);
  const std::optional<bool> tf32 = is_set(env::kTf32), nondeterministic = is_set(env::kCudnnNondeterministic);
  if (deterministic && nondeterministic == true)
    throw InvalidArgument("{}=1 and {}=1 contradict each other: unset one of them", env::kDeterministic,
                          env::kCudnnNondeterministic);
  MathSettings settings;
  settings.tf32_products = tf32.value_or(false);
  settings.tf32_convolutions = tf32.value_or(!deterministic);
  settings.autotune = is_set(env::kCudnnAutotune).value_or(!deterministic);
  settings.nondeterministic = nondeterministic.value_or(!deterministic);
  if (const auto seconds = env::integer(env::kCudnnTuning, 0, 24 * 3600)) settings.tuning_seconds = *seconds;
  if (const auto mib = env::integer(env::kCudaWorkspace, 0, 1 << 20))
    settings.workspace_bytes = static_cast<std::size_t>(*mib) << 20;
  return settings;
}

const MathSettings& math_settings() {
  static const MathSettings kSettings = read_math_settings();
  return kSettings;
}

TuningBudget& tuning_budget() {
  static TuningBudget budget{std::chrono::seconds(math_settings().tuning_seconds)};
  return budget;
}

}  // namespace lockstep::cuda

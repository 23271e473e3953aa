// A replacement like cuda_runtime.h: the part of cuDNN that handles.cpp calls. For convolutions see cudnn_frontend.h.
#pragma once

#include "tests/kernels/emulated_cuda/cuda_runtime.h"

// NOLINTBEGIN(readability-identifier-naming): NVIDIA's names.
enum cudnnStatus_t { CUDNN_STATUS_SUCCESS = 0, CUDNN_STATUS_NOT_SUPPORTED = 3000 };
struct EmulatedCudnn {
  cudaStream_t stream = nullptr;
};
using cudnnHandle_t = EmulatedCudnn*;
inline const char* cudnnGetErrorString(cudnnStatus_t) { return "CUDNN_STATUS_NOT_SUPPORTED"; }
inline cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  static thread_local EmulatedCudnn one;  // handles are per thread
  *handle = &one;
  return CUDNN_STATUS_SUCCESS;
}
inline cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
// NOLINTEND(readability-identifier-naming)

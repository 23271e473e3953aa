// The CUDA device's kernel table, and what its kernels share.
#include <cstdlib>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/libraries.h"
#include "kernels/cuda/mixed.h"
#include "kernels/cuda/stream.h"
#include "lockstep/core/error.h"
#include "src/cuda/cuda_device.h"

namespace lockstep::cuda {

KernelTable cuda_kernels() {
  return {
      .fill = fill,
      .add = add,
      .accumulate = accumulate,
      .scale = scale,
      .scale_by = scale_by,
      .relu = relu,
      .relu_backward = relu_backward,
      .bias = bias,
      .bias_backward = bias_backward,
      .conv2d = conv2d,
      .conv2d_backward_data = conv2d_backward_data,
      .conv2d_backward_weights = conv2d_backward_weights,
      .max_pool2d = max_pool2d,
      .max_pool2d_backward = max_pool2d_backward,
      .lrn = lrn,
      .lrn_backward = lrn_backward,
      .linear = linear,
      .linear_backward_data = linear_backward_data,
      .linear_backward_weights = linear_backward_weights,
      .softmax_cross_entropy = softmax_cross_entropy,
      .softmax_cross_entropy_backward = softmax_cross_entropy_backward,
      .l2_loss = l2_loss,
      .sgd_step = sgd_step,
      .find_bad_gradients = find_bad_gradients,
      .update_loss_scale = update_loss_scale,
      .distort = distort,
      .mixed =
          {
              .convert = mixed::convert,
              .add = mixed::add,
              .scale = mixed::scale,
              .relu = mixed::relu,
              .relu_backward = mixed::relu_backward,
              .bias = mixed::bias,
              .bias_backward = mixed::bias_backward,
              .conv2d = mixed::conv2d,
              .conv2d_backward_data = mixed::conv2d_backward_data,
              .conv2d_backward_weights = mixed::conv2d_backward_weights,
              .max_pool2d = mixed::max_pool2d,
              .max_pool2d_backward = mixed::max_pool2d_backward,
              .lrn = mixed::lrn,
              .lrn_backward = mixed::lrn_backward,
              .linear = mixed::linear,
              .linear_backward_data = mixed::linear_backward_data,
              .linear_backward_weights = mixed::linear_backward_weights,
          },
  };
}

void throw_cuda_error(cudaError_t error, const char* call, const char* file, int line) {
  cudaGetLastError();  // it is reported: the next launch must not find it
  throw Error("CUDA: {} failed at {}:{}: {} ({})", call, file, line, cudaGetErrorString(error), cudaGetErrorName(error));
}
void throw_cublas_error(cublasStatus_t status, const char* call, const char* file, int line) {
  throw Error("cuBLAS: {} failed at {}:{}: {}", call, file, line, cublasLtGetStatusString(status));
}
void throw_cudnn_error(cudnnStatus_t status, const char* call, const char* file, int line) {
  throw Error("cuDNN: {} failed at {}:{}: {}", call, file, line, cudnnGetErrorString(status));
}

[[noreturn]] void throw_no_half(DType type) {
  throw InvalidArgument("mixed precision: float16 or bfloat16 expected, got {}", name_of(type));
}

void require_lrn_channels(const LrnParams& params) {
  constexpr std::int64_t kMostChannels = 12 * 1024;  // 48 KiB of shared memory
  if (params.channels > kMostChannels) throw InvalidArgument("lrn: {} channels; on a GPU at most {}", params.channels, kMostChannels);
}

Scratch::Scratch(Stream& stream, std::size_t bytes) : stream_(native(stream)) {
  if (bytes != 0) LOCKSTEP_CUDA(cudaMallocAsync(&data_, bytes, stream_));
}
Scratch::~Scratch() {
  if (data_ != nullptr) cudaFreeAsync(data_, stream_);
}

}  // namespace lockstep::cuda

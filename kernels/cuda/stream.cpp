#include "kernels/cuda/stream.h"

#include "kernels/cuda/kernels.h"
#include "lockstep/core/error.h"

namespace lockstep::cuda {

void throw_cuda_error(cudaError_t error, const char* call, const char* file, int line) {
  cudaGetLastError();  // it is reported: the next launch must not find it
  throw Error("CUDA: {} failed at {}:{}: {} ({})", call, file, line, cudaGetErrorString(error), cudaGetErrorName(error));
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

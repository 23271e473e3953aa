#include "kernels/cuda/stream.h"

#include <algorithm>
#include <bit>

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

Scratch::Scratch(Stream& stream, std::size_t bytes) {
  constexpr std::size_t kLeast = std::size_t{64} << 10;
  if (bytes != 0) memory_ = take_scratch(stream, std::bit_ceil(std::max(bytes, kLeast)));
}

}  // namespace lockstep::cuda

#include "kernels/cuda/stream.h"

#include <algorithm>
#include <bit>

#include "kernels/cuda/kernels.h"
#include "lockstep/core/error.h"

namespace lockstep::cuda {

void throw_cuda_error(cudaError_t error, const char* call, const char* file, int line) {
  cudaGetLastError();  // it is reported: the next launch must not find it
  throw Error("CUDA: {} failed at {}:{}: {} ({})", call, file, line, cudaGetErrorString(error),
              cudaGetErrorName(error));
}

[[noreturn]] void throw_no_float(DType type) {
  throw InvalidArgument("a kernel on a GPU: float32, float16 or bfloat16 expected, got {}", name_of(type));
}

void require_lrn_channels(const LrnParams& params) {
  constexpr std::int64_t kMostChannels = 12 * 1024;  // 48 KiB of shared memory
  if (params.channels > kMostChannels)
    throw InvalidArgument("lrn: {} channels; on a GPU at most {}", params.channels, kMostChannels);
}

void require_attention_width(std::int64_t width) {
  if (width > kMostAttentionWidth)
    throw InvalidArgument("attention: heads have at most {} elements on a GPU, got {}", kMostAttentionWidth, width);
}

// Few sizes, so that the allocator has most of them: powers of two, and of large ones, where twice as much is too much,
// four in each power.
Scratch::Scratch(Stream& stream, std::size_t bytes) {
  constexpr std::size_t kLeast = std::size_t{64} << 10, kLargePower = std::size_t{64} << 20;
  if (bytes == 0) return;
  const std::size_t step = std::bit_floor(bytes) / 4;
  memory_ = take_scratch(
      stream, bytes <= kLargePower ? std::bit_ceil(std::max(bytes, kLeast)) : (bytes + step - 1) / step * step);
}

}  // namespace lockstep::cuda

#include "kernels/cuda/stream.h"

#include <algorithm>
#include <bit>

#include "kernels/cuda/cuda_kernels.h"
#include "lockstep/core/error.h"

namespace lockstep::cuda {

void throw_cuda_error(cudaError_t error, const char* call, const char* file, int line) {
  cudaGetLastError();  // clears the error, so that the next launch does not report it again
  throw Error("CUDA: {} failed at {}:{}: {} ({})", call, file, line, cudaGetErrorString(error),
              cudaGetErrorName(error));
}

[[noreturn]] void throw_no_float(DType type) {
  throw InvalidArgument("a kernel on a GPU: float32, float16 or bfloat16 expected, got {}", name_of(type));
}

void require_lrn_channels(const LrnParams& params) {
  constexpr std::int64_t kMostChannels = 12 * 1024;  // 48 KiB of shared memory
  if (params.channels > kMostChannels)
    throw InvalidArgument("lrn: at most {} channels fit on a GPU, got {}", kMostChannels, params.channels);
}

void require_attention_width(std::int64_t width) {
  if (width > kMostAttentionWidth)
    throw InvalidArgument("attention: heads have at most {} elements on a GPU, got {}", kMostAttentionWidth, width);
}

// Rounds to few sizes, so that the allocator's cache has most of them: powers of two, and four steps per power for
// large sizes, where twice as much would be too much.
Scratch::Scratch(Stream& stream, std::size_t bytes) {
  constexpr std::size_t kLeast = std::size_t{64} << 10, kLargePower = std::size_t{64} << 20;
  if (bytes == 0) return;
  const std::size_t step = std::bit_floor(bytes) / 4;
  memory_ = take_scratch(
      stream, bytes <= kLargePower ? std::bit_ceil(std::max(bytes, kLeast)) : (bytes + step - 1) / step * step);
}

}  // namespace lockstep::cuda

// What an update among ranks that share memory (UpdateRanks) does besides the formula, a chunk at a time, so that each
// value is read from memory once and written once.
#pragma once

#include <cstdint>

#include "kernels/cpu/prefetch.h"
#include "lockstep/core/update_params.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace lockstep::fast {

// Tensors from this size on go past the caches: a peer's weights that will have left them before it reads them again
// need not be read to be written.
inline constexpr std::int64_t kFloatsPastCaches = std::int64_t{1} << 18;

// Asks for what the update reads and writes `kPrefetchAhead` floats further on.
template <int kStates>
[[gnu::always_inline]] inline void prefetch_update(const UpdateTensor& tensor, std::int64_t at) {
  for (const float* grad : tensor.ranks->grads) prefetch_chunk(grad + at);
  prefetch_chunk<true>(tensor.weight + at);
  for (int k = 0; k < kStates; ++k) prefetch_chunk<true>(tensor.states[k] + at);
}

// The mean of the ranks' gradients, of elements [begin, begin + count), at most kChunk.
[[gnu::always_inline]] inline void average(const UpdateRanks& ranks, std::int64_t begin, std::int64_t count,
                                           float* mean) {
  const std::size_t world = ranks.grads.size();
  const float scale = 1 / static_cast<float>(world);
  const float* const first = ranks.grads[0] + begin;
  if (world == 2) {
    const float* const second = ranks.grads[1] + begin;
    for (std::int64_t i = 0; i < count; ++i) mean[i] = (first[i] + second[i]) * scale;
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) mean[i] = first[i];
  for (std::size_t rank = 1; rank < world; ++rank) {
    const float* const grad = ranks.grads[rank] + begin;
    for (std::int64_t i = 0; i < count; ++i) mean[i] += grad[i];
  }
  for (std::int64_t i = 0; i < count; ++i) mean[i] *= scale;
}

// What clipping makes of the mean.
[[gnu::always_inline]] inline void clip(const UpdateRanks& ranks, std::int64_t count, float* mean) {
  if (ranks.clip_factor == nullptr) return;
  const float factor = *ranks.clip_factor;
  for (std::int64_t i = 0; i < count; ++i) mean[i] *= factor;
}

// By stores that read no line before they write it, where `to` is aligned for them; end_sending() must follow before
// others are told.
[[gnu::always_inline]] inline void copy_past_caches(float* to, const float* from, std::int64_t count) {
  std::int64_t i = 0;
#if defined(__SSE2__)
  if (reinterpret_cast<std::uintptr_t>(to) % sizeof(__m128) == 0)
    for (; i + 4 <= count; i += 4) _mm_stream_ps(to + i, _mm_loadu_ps(from + i));
#endif
  for (; i < count; ++i) to[i] = from[i];
}

inline void end_sending() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// The same elements of the weight, to the other ranks.
[[gnu::always_inline]] inline void send(const UpdateTensor& tensor, std::int64_t begin, std::int64_t count) {
  for (float* copy : tensor.ranks->copies)
    if (tensor.count >= kFloatsPastCaches)
      copy_past_caches(copy + begin, tensor.weight + begin, count);
    else
      for (std::int64_t i = begin; i < begin + count; ++i) copy[i] = tensor.weight[i];
}

}  // namespace lockstep::fast

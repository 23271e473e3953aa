// The work of a shared update (SharedUpdate) in addition to the formula, chunk by chunk, so that each value is read
// from memory once and written once.
#pragma once

#include <cstdint>

#include "kernels/cpu/math/prefetch.h"
#include "lockstep/core/update_params.h"
#include "src/core/base/processor.h"

namespace lockstep::fast {

// Tensors of at least this size are written past the caches: a peer's weights would leave the caches before it reads
// them again, and need not be read before they are written.
inline constexpr std::int64_t kFloatsPastCaches = std::int64_t{1} << 18;

// Prefetches the memory that the update reads and writes `kPrefetchAhead` floats further on.
template <int kStates> LOCKSTEP_ALWAYS_INLINE void prefetch_update(const UpdateTensor& tensor, std::int64_t at) {
  for (const float* grad : tensor.shared->grads) prefetch_chunk(grad + at);
  prefetch_chunk<true>(tensor.weight + at);
  for (int k = 0; k < kStates; ++k) prefetch_chunk<true>(tensor.states[k] + at);
}

// The mean of the holders' gradients, for elements [begin, begin + count), at most kChunk.
LOCKSTEP_ALWAYS_INLINE void average(const SharedUpdate& update, std::int64_t begin, std::int64_t count, float* mean) {
  const std::size_t holders = update.grads.size();
  const float scale = 1 / static_cast<float>(holders);
  const float* const first = update.grads[0] + begin;
  if (holders == 2) {
    const float* const second = update.grads[1] + begin;
    for (std::int64_t i = 0; i < count; ++i) mean[i] = (first[i] + second[i]) * scale;
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) mean[i] = first[i];
  for (std::size_t holder = 1; holder < holders; ++holder) {
    const float* const grad = update.grads[holder] + begin;
    for (std::int64_t i = 0; i < count; ++i) mean[i] += grad[i];
  }
  for (std::int64_t i = 0; i < count; ++i) mean[i] *= scale;
}

// Applies clipping to the mean.
LOCKSTEP_ALWAYS_INLINE void clip(const SharedUpdate& update, std::int64_t count, float* mean) {
  if (update.clip_factor == nullptr) return;
  const float factor = *update.clip_factor;
  for (std::int64_t i = 0; i < count; ++i) mean[i] *= factor;
}

// Copies the same elements of the weight to the other holders; call end_stores_past_caches() before they are notified.
LOCKSTEP_ALWAYS_INLINE void send(const UpdateTensor& tensor, std::int64_t begin, std::int64_t count) {
  for (float* copy : tensor.shared->copies)
    if (tensor.count >= kFloatsPastCaches)
      store_past_caches(copy + begin, tensor.weight + begin, count);
    else
      for (std::int64_t i = begin; i < begin + count; ++i) copy[i] = tensor.weight[i];
}

}  // namespace lockstep::fast

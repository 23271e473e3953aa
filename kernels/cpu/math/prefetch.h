// Loops over long arrays that compute much per element. A core looks ahead only as far as the instructions that it
// holds, a few iterations, and the hardware's prefetcher stops at the page. So these loops compute one chunk at a time
// and prefetch as many cache lines further on (`run` of loops/fast.inc). On Sapphire Rapids, loops of 25 operations
// then run at the memory's speed; data in the cache costs about 3 % more. Cheap loops reach the memory's speed without
// prefetching, and are then faster on cached data; on Zen 4 prefetching slows them down by a fifth.
#pragma once

#include <cstdint>

#include "kernels/always_inline.h"

namespace lockstep::fast {

inline constexpr std::int64_t kChunk = 64, kPrefetchAhead = 512;  // in floats

// Prefetches the cache lines of `bytes` bytes, `ahead` bytes after `at`, possibly beyond the array's end: nothing is
// read, and no address is an error.
template <bool is_written = false>
LOCKSTEP_ALWAYS_INLINE void prefetch_lines(const void* at, std::uintptr_t ahead, std::uintptr_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(at) + ahead;
  for (std::uintptr_t line = 0; line < bytes; line += 64)
    __builtin_prefetch(reinterpret_cast<const void*>(address + line), is_written ? 1 : 0);
}

// The same for the chunk `ahead` floats after `at`.
template <bool is_written = false>
LOCKSTEP_ALWAYS_INLINE void prefetch_chunk(const float* at, std::int64_t ahead = kPrefetchAhead) {
  prefetch_lines<is_written>(at, static_cast<std::uintptr_t>(ahead) * sizeof(float), kChunk * sizeof(float));
}

}  // namespace lockstep::fast

// Loops over long arrays that compute much per element. A core looks ahead only as far as the instructions that it
// holds, a few iterations, and the hardware's prefetcher stops at the page. So these loops compute one chunk at a time
// and prefetch as many cache lines further on. On Sapphire Rapids, loops of 25 operations then run at the memory's
// speed; data in the cache costs about 3 % more.
#pragma once

#include <cstdint>

#include "kernels/always_inline.h"

namespace lockstep::fast {

inline constexpr std::int64_t kChunk = 64, kPrefetchAhead = 512;  // in floats

// Prefetches the chunk `ahead` floats after `at`, possibly beyond the array's end: nothing is read, and no address is
// an error.
template <bool is_written = false>
LOCKSTEP_ALWAYS_INLINE void prefetch_chunk(const float* at, std::int64_t ahead = kPrefetchAhead) {
  const auto address = reinterpret_cast<std::uintptr_t>(at) + static_cast<std::uintptr_t>(ahead) * sizeof(float);
  for (std::uintptr_t line = 0; line < kChunk * sizeof(float); line += 64)
    __builtin_prefetch(reinterpret_cast<const void*>(address + line), is_written ? 1 : 0);
}

}  // namespace lockstep::fast

// for (Index i = 0; i < count; ++i) { the statements after `prefetch` }, with `prefetch`, an expression of i, before
// every chunk.
#define LOCKSTEP_CHUNKED_LOOP(i, count, prefetch, ...)           \
  {                                                              \
    Index chunk = 0;                                             \
    for (; chunk + kChunk <= (count); chunk += kChunk) {         \
      {                                                          \
        const Index i = chunk;                                   \
        prefetch;                                                \
      }                                                          \
      LOCKSTEP_INDEPENDENT_ITERATIONS                            \
      for (Index i = chunk; i < chunk + kChunk; ++i) __VA_ARGS__ \
    }                                                            \
    LOCKSTEP_INDEPENDENT_ITERATIONS                              \
    for (Index i = chunk; i < (count); ++i) __VA_ARGS__          \
  }

// The same without prefetching, for cheap loops: they reach the memory's speed by themselves, and are faster on cached
// data.
#define LOCKSTEP_PLAIN_LOOP(i, count, prefetch, ...) \
  LOCKSTEP_INDEPENDENT_ITERATIONS                    \
  for (Index i = 0; i < (count); ++i) __VA_ARGS__

// All that depends on the processor, which is x86-64 or 64-bit ARM (aarch64). The other sources name neither, except
// the public cpu_dispatch.h, whose macros programs use, device/amx_probe.cpp, and the kernels. meson.build refuses to
// build for other processors.
//
// Order of memory accesses. x86-64 keeps the order of stores, and that of loads; ARM keeps neither. So all data that
// threads or processes share is published by a store with release semantics (or a sequentially consistent one) and read
// after a load with acquire semantics that has seen it. Both processors then order the plain accesses around them. The
// stores of store_past_caches() are unordered on x86-64 as well: end_stores_past_caches() must follow them.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#include <emmintrin.h>
#elif !defined(__aarch64__)
#error "Lockstep runs on x86-64 and 64-bit ARM (aarch64)"
#endif

namespace lockstep {

// The unit, in bytes, in which the processor moves memory between its caches. On a few ARM processors the unit is
// larger (128 bytes on Apple's), which makes data that ranks write next to each other slower and not wrong. The number
// is the same on all processors, because it decides where a message is cut into slices, and the ranks of a job must cut
// alike.
inline constexpr std::size_t kCacheLine = 64;

// -- instruction sets for which loops are compiled in addition to the baseline (SSE2 or NEON)

#if defined(__x86_64__)
inline bool has_avx2() {
  __builtin_cpu_init();  // the caller may run before main()
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
inline bool has_avx512() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
}
// Products of pairs of bfloat16 numbers, summed as floats.
inline bool has_avx512_bfloat16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#else
inline constexpr bool has_avx2() { return false; }
inline constexpr bool has_avx512() { return false; }
inline constexpr bool has_avx512_bfloat16() { return false; }
#endif

// -- waiting

// For a loop that polls memory: lets the core's other hardware thread run, and saves energy. Takes some 10 to 50 ns.
// (ARM's `yield` does nothing on most processors; `isb` empties the pipeline, which takes about as long as x86's
// `pause`.)
inline void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#else
  asm volatile("isb" ::: "memory");
#endif
}

// -- time

// False if the processor has no counter that runs at one rate on all cores. On ARM the architecture promises it.
inline bool has_steady_counter() {
#if defined(__x86_64__)
  constexpr unsigned kPowerManagement = 0x80000007, kInvariantCounter = 1u << 8;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(kPowerManagement, &a, &b, &c, &d) != 0 && (d & kInvariantCounter) != 0;
#else
  return true;
#endif
}

// Increases by about 2 to 4 (x86-64), or 0.02 to 1 (ARM), per nanosecond.
inline std::uint64_t steady_counter() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  std::uint64_t ticks;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#endif
}

// -- stores

// Copies floats with stores that do not read a cache line before they write it and leave nothing in the caches, where
// the processor has such stores and `to` is aligned for them. On x86-64 they are unordered: the same thread must call
// end_stores_past_caches() before it publishes them.
[[gnu::always_inline]] inline void store_past_caches(float* to, const float* from, std::int64_t count) {
  std::int64_t i = 0;
#if defined(__x86_64__)
  if (reinterpret_cast<std::uintptr_t>(to) % sizeof(__m128) == 0)
    for (; i + 4 <= count; i += 4) _mm_stream_ps(to + i, _mm_loadu_ps(from + i));
#endif
  for (; i < count; ++i) to[i] = from[i];
}

inline void end_stores_past_caches() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace lockstep

// Compiles one hot loop for baseline x86-64, AVX2 and AVX-512 and chooses at run time by the CPU. On 64-bit ARM there
// is one build, for NEON, which all its processors have.
//
//   LOCKSTEP_CPU_DISPATCH(void, add, (const float* a, const float* b, float* out, std::int64_t n), (a, b, out, n), {
//     LOCKSTEP_INDEPENDENT_ITERATIONS
//     for (std::int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
//   })
//
// defines add(). On x86-64 the body is compiled three times by target attributes (no -march, no target_clones, whose
// resolvers crash under ThreadSanitizer). So it must be plain loops: no lambdas, which do not inherit the target, and
// every function it calls must be inlined or compiled for the baseline. Files that use it for reductions or updates are
// compiled with -ffp-contract=off, so that all builds compute the same bits.
#pragma once

#pragma GCC visibility push(default)
namespace lockstep {

// Each set includes all earlier ones. kAmx: tiles of bfloat16 (Intel, from Sapphire Rapids on).
enum class Isa { kBaseline, kAvx2, kAvx512, kAmx };

// The instruction set that this CPU and operating system support, determined once. kBaseline is SSE2, or NEON on ARM.
// LOCKSTEP_ISA=baseline|avx2|avx512|amx lowers it (for tests).
Isa cpu_isa();

}  // namespace lockstep
#pragma GCC visibility pop

// Put before a loop: no iteration reads what another one writes, so the compiler need not prove it (pointers may be
// equal).
#if defined(__clang__)
#define LOCKSTEP_INDEPENDENT_ITERATIONS _Pragma("clang loop vectorize(assume_safety)")
#else
#define LOCKSTEP_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif

#if defined(__x86_64__)
#if defined(__clang__)
#define LOCKSTEP_TARGET_AVX2 __attribute__((target("avx2,fma")))
#define LOCKSTEP_TARGET_AVX512 __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,fma"), min_vector_width(512)))
#else
#define LOCKSTEP_TARGET_AVX2 __attribute__((target("avx2,fma")))
#define LOCKSTEP_TARGET_AVX512 __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,fma,prefer-vector-width=512")))
#endif
#define LOCKSTEP_CPU_DISPATCH(result, name, parameters, arguments, ...)                                              \
  static result name##_baseline parameters __VA_ARGS__ LOCKSTEP_TARGET_AVX2 static result name##_avx2 parameters     \
      __VA_ARGS__ LOCKSTEP_TARGET_AVX512 static result name##_avx512 parameters __VA_ARGS__ result name parameters { \
    switch (::lockstep::cpu_isa()) {                                                                                 \
      case ::lockstep::Isa::kAmx:                                                                                    \
      case ::lockstep::Isa::kAvx512: return name##_avx512 arguments;                                                 \
      case ::lockstep::Isa::kAvx2: return name##_avx2 arguments;                                                     \
      default: return name##_baseline arguments;                                                                     \
    }                                                                                                                \
  }
#else
#define LOCKSTEP_CPU_DISPATCH(result, name, parameters, arguments, ...) result name parameters __VA_ARGS__
#endif

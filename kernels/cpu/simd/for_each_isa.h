// Includes the file LOCKSTEP_LOOPS once for each instruction set for which vector kernels are compiled:
//
//   #define LOCKSTEP_LOOPS "kernels/cpu/conv/winograd/winograd.inc"
//   #include "kernels/cpu/simd/for_each_isa.h"
//
// The file has no include guard and includes nothing, because what it contains is compiled for the instruction set. It
// writes all in `namespace lockstep::LOCKSTEP_SIMD`, which is lockstep::baseline, lockstep::avx2 and lockstep::avx512
// in turn; LOCKSTEP_LANES is the number of floats in a vector. LOCKSTEP_BY_ISA (by_isa.h) chooses one at run time.
//
// Templates of other headers keep the baseline. Lambdas must not use vectors, because Clang compiles them for the
// baseline.
#define LOCKSTEP_SIMD baseline
#define LOCKSTEP_LANES 4
#include LOCKSTEP_LOOPS
#undef LOCKSTEP_SIMD
#undef LOCKSTEP_LANES

#if defined(__x86_64__)

#define LOCKSTEP_SIMD avx2
#define LOCKSTEP_LANES 8
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#include LOCKSTEP_LOOPS
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#undef LOCKSTEP_SIMD
#undef LOCKSTEP_LANES

#define LOCKSTEP_SIMD avx512
#define LOCKSTEP_LANES 16
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,fma"))), apply_to = function)
#pragma clang attribute push(__attribute__((min_vector_width(512))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,fma,prefer-vector-width=512")
#endif
#include LOCKSTEP_LOOPS
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#undef LOCKSTEP_SIMD
#undef LOCKSTEP_LANES

#endif

#undef LOCKSTEP_LOOPS

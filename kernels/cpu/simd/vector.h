// Vectors of floats, as many as a register of the instruction set holds: `Vector` in lockstep::baseline (4 floats: SSE2
// or NEON), lockstep::avx2 (8) and lockstep::avx512 (16). They are the vectors of GCC and Clang, so that + - * / and
// comparisons with ?: work lane by lane; vector.inc adds what has no operator.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/always_inline.h"
#include "src/core/base/half.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define LOCKSTEP_LOOPS "kernels/cpu/simd/vector.inc"
#include "kernels/cpu/simd/for_each_isa.h"

// Loops over elements, each instruction set in turn.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>

#include "kernels/binary_functions.h"
#include "kernels/cpu/loops/fast.h"
#include "kernels/cpu/math/prefetch.h"
#include "kernels/cpu/math/shared_update.h"
#include "kernels/cpu/math/squares.h"
#include "kernels/cpu/math/unary_math.h"
#include "kernels/cpu/math/vector_math.h"
#include "kernels/cpu/math/vector_power.h"
#include "kernels/cpu/math/vector_sine.h"
#include "kernels/cpu/simd/by_isa.h"
#include "kernels/cpu/simd/transpose.h"
#include "kernels/dropout_rule.h"
#include "kernels/strided_loop.h"
#include "kernels/unary_functions.h"
#include "kernels/updates/all.h"

#define LOCKSTEP_LOOPS "kernels/cpu/loops/fast_binary.inc"
#include "kernels/cpu/simd/for_each_isa.h"
#define LOCKSTEP_LOOPS "kernels/cpu/loops/fast_dropout.inc"
#include "kernels/cpu/simd/for_each_isa.h"
#define LOCKSTEP_LOOPS "kernels/cpu/loops/fast_elementwise.inc"
#include "kernels/cpu/simd/for_each_isa.h"
#define LOCKSTEP_LOOPS "kernels/cpu/loops/fast_movement.inc"
#include "kernels/cpu/simd/for_each_isa.h"
#define LOCKSTEP_LOOPS "kernels/cpu/loops/fast_unary.inc"
#include "kernels/cpu/simd/for_each_isa.h"
#define LOCKSTEP_LOOPS "kernels/cpu/loops/fast_updates.inc"
#include "kernels/cpu/simd/for_each_isa.h"

namespace lockstep::fast {

float largest_magnitude(const float* x, Index count) { return LOCKSTEP_BY_ISA(fast::largest_magnitude)(x, count); }

void add_column_sums(const float* x, Index rows, Index columns, float* sums) {
  LOCKSTEP_BY_ISA(fast::add_column_sums)(x, rows, columns, sums);
}

}  // namespace lockstep::fast

// Loops over rows, columns and images, each instruction set in turn, and the choice of one for the kernel table.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_table.h"
#include "kernels/cpu/loops/fast.h"
#include "kernels/cpu/math/prefetch.h"
#include "kernels/cpu/math/rows.h"
#include "kernels/cpu/math/scratch.h"
#include "kernels/cpu/math/sixteen.h"
#include "kernels/cpu/math/squares.h"
#include "kernels/cpu/math/unary_math.h"
#include "kernels/cpu/math/vector_inverse_root.h"
#include "kernels/cpu/math/vector_math.h"
#include "kernels/cpu/simd/by_isa.h"
#include "kernels/ctc_labels.h"
#include "kernels/order_bits.h"
#include "kernels/recurrent_formulas.h"
#include "kernels/recurrent_rows.h"
#include "kernels/reduction_plan.h"
#include "kernels/resample_rule.h"
#include "kernels/windows.h"

#define LOCKSTEP_LOOPS "kernels/cpu/loops/fast_avg_pool.inc"
#include "kernels/cpu/simd/for_each_isa.h"
#define LOCKSTEP_LOOPS "kernels/cpu/loops/fast_batch_norm.inc"
#include "kernels/cpu/simd/for_each_isa.h"
#define LOCKSTEP_LOOPS "kernels/cpu/loops/fast_cross_entropy.inc"
#include "kernels/cpu/simd/for_each_isa.h"
#define LOCKSTEP_LOOPS "kernels/cpu/loops/fast_ctc.inc"
#include "kernels/cpu/simd/for_each_isa.h"
#define LOCKSTEP_LOOPS "kernels/cpu/loops/fast_group_norm.inc"
#include "kernels/cpu/simd/for_each_isa.h"
#define LOCKSTEP_LOOPS "kernels/cpu/loops/fast_layer_norm.inc"
#include "kernels/cpu/simd/for_each_isa.h"
#define LOCKSTEP_LOOPS "kernels/cpu/loops/fast_loss.inc"
#include "kernels/cpu/simd/for_each_isa.h"
#define LOCKSTEP_LOOPS "kernels/cpu/loops/fast_lrn.inc"
#include "kernels/cpu/simd/for_each_isa.h"
#define LOCKSTEP_LOOPS "kernels/cpu/loops/fast_ordered.inc"
#include "kernels/cpu/simd/for_each_isa.h"
#define LOCKSTEP_LOOPS "kernels/cpu/loops/fast_pool.inc"
#include "kernels/cpu/simd/for_each_isa.h"
#define LOCKSTEP_LOOPS "kernels/cpu/loops/fast_recurrent.inc"
#include "kernels/cpu/simd/for_each_isa.h"
#define LOCKSTEP_LOOPS "kernels/cpu/loops/fast_reduction.inc"
#include "kernels/cpu/simd/for_each_isa.h"
#define LOCKSTEP_LOOPS "kernels/cpu/loops/fast_softmax.inc"
#include "kernels/cpu/simd/for_each_isa.h"
#define LOCKSTEP_LOOPS "kernels/cpu/loops/fast_resample.inc"
#include "kernels/cpu/simd/for_each_isa.h"

namespace lockstep {

void use_fast_cpu_kernels(KernelTable& table) { LOCKSTEP_BY_ISA(fast::use_families)(table); }

}  // namespace lockstep

// The CPU's vector loops: entries of the kernel table that replace plain kernels. Each runs on one thread; every loop
// is compiled for several instruction sets, and all builds compute the same bits.
#pragma once

#include "kernels/cpu/math/in_parts.h"
#include "kernels/cpu/simd/vector.h"
#include "lockstep/core/cpu_dispatch.h"
#include "lockstep/core/device.h"

namespace lockstep::fast {

using Index = std::int64_t;

// The largest absolute value; infinity or NaN if there is one, and 0 for an empty array.
float largest_magnitude(const float* x, Index count);

// sums (columns) += the column sums of x (rows, columns), computed in blocks of rows.
void add_column_sums(const float* x, Index rows, Index columns, float* sums);

}  // namespace lockstep::fast

#define LOCKSTEP_LOOPS "kernels/cpu/loops/fast.inc"
#include "kernels/cpu/simd/for_each_isa.h"

// The vector loops of the CPU: entries of the kernel table that replace plain kernels. One thread each; every loop is
// built for several instruction sets (core/cpu_dispatch.h), and all builds give the same bits.
#pragma once

#include "kernels/cpu/any_float.h"
#include "kernels/families.h"
#include "lockstep/core/device.h"

namespace lockstep::fast {

using Index = std::int64_t;

// The largest absolute value; infinity or NaN where there is one, and 0 of nothing.
float largest_magnitude(const float* x, Index count);

// In double, in a fixed order: the same bits from every build.
double sum_of_squares(const float* x, Index count);

// sums (columns) += those of x (rows, columns), in blocks of rows, whose sums are added.
void add_column_sums(const float* x, Index rows, Index columns, float* sums);

}  // namespace lockstep::fast

// The operators on 16-bit floats, on the CPU: operands are widened to floats, the float32 operator runs, results are rounded. Slow and
// right: what a GPU's kernels are compared with, and what lets the same program run on machines without one.
#pragma once

#include "lockstep/core/device.h"

namespace lockstep {

MixedKernelTable reference_mixed_kernels();  // over reference_kernels()
MixedKernelTable cpu_mixed_kernels();        // over the CPU device's

namespace mixed {

using Index = std::int64_t;

// Throws InvalidArgument for a type that is no float of 16 bits.
void check_type(DType type);

// `in` may be of 32 bits as well: then it is copied.
void widen(DType type, const void* in, float* out, Index count);
// Rounds to nearest, ties to even.
void narrow(DType type, const float* in, void* out, Index count);

}  // namespace mixed

}  // namespace lockstep

// Tiles of matrix products whose sums stay in registers, for each instruction set: the heart of all kernels that
// multiply matrices without packing them.
#pragma once

#include <algorithm>

#include "kernels/cpu/simd/blocking.h"
#include "kernels/cpu/simd/vector.h"

namespace lockstep {

// The initial values of sums, a row of them (null: 0), and whether ReLU is applied to the result.
struct Ends {
  const float* start = nullptr;
  bool relu = false;
};

}  // namespace lockstep

#define LOCKSTEP_LOOPS "kernels/cpu/products/tile.inc"
#include "kernels/cpu/simd/for_each_isa.h"

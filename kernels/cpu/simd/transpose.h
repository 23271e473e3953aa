// Transposition of matrices of 32-bit elements in registers, for each instruction set.
#pragma once

#include <algorithm>

#include "kernels/cpu/simd/vector.h"
#include "src/core/base/processor.h"

#define LOCKSTEP_LOOPS "kernels/cpu/simd/transpose.inc"
#include "kernels/cpu/simd/for_each_isa.h"

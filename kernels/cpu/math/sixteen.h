// Sixteen floats, whatever the instruction set: every build adds in the same order and so computes the same bits.
#pragma once

#include "kernels/cpu/simd/vector.h"

#define LOCKSTEP_LOOPS "kernels/cpu/math/sixteen.inc"
#include "kernels/cpu/simd/for_each_isa.h"

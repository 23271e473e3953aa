// Loops over a row of floats that several operators share, for each instruction set.
#pragma once

#include <algorithm>
#include <limits>

#include "kernels/cpu/math/prefetch.h"
#include "kernels/cpu/math/sixteen.h"
#include "kernels/cpu/math/vector_math.h"
#include "lockstep/core/cpu_dispatch.h"

#define LOCKSTEP_LOOPS "kernels/cpu/math/rows.inc"
#include "kernels/cpu/simd/for_each_isa.h"

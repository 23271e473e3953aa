// The parts of which the CPU's kernel table is made. Each replaces entries of the reference table.
#pragma once

#include "lockstep/core/kernels.h"

namespace lockstep {

void use_fast_cpu_kernels(KernelTable& table);  // kernels/cpu: vector loops
void use_onednn_kernels(KernelTable& table);    // kernels/onednn: convolution, matrix products

// For a build without oneDNN: the table's first large convolution or product logs that it is slow, and the remedy.
void log_slow_products(KernelTable& table);

}  // namespace lockstep

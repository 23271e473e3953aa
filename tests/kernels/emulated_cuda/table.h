// The kernel table of kernels/cuda, compiled for this emulation. Its functions run on the CPU, on host memory; streams do not matter to
// them.
#pragma once

#include "lockstep/core/kernels.h"

namespace lockstep::testing {

const KernelTable& emulated_kernels();

}  // namespace lockstep::testing

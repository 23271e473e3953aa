// The kernel table of kernels/cuda, compiled for this emulation. Its functions work on host memory; on the CPU's stream
// at once, on one of a recording device in that stream's order.
#pragma once

#include <atomic>

#include "lockstep/core/kernels.h"

namespace lockstep::testing {

const KernelTable& emulated_kernels();

// What kernels/cuda asked of others, in this process so far; launches: blocks.h.
struct EmulatedCalls {
  std::atomic<int> products{0};      // of cuBLASLt
  std::atomic<int> convolutions{0};  // of cuDNN
  std::atomic<int> workspaces{0};
};
EmulatedCalls& emulated_calls();

}  // namespace lockstep::testing

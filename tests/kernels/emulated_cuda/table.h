// The kernel table of kernels/cuda, compiled for this emulation. Its functions work on host memory: on the CPU's stream
// at once, on a recording device's stream in that stream's order.
#pragma once

#include <atomic>

#include "lockstep/core/kernels.h"
#include "tests/support/reproducible.h"

namespace lockstep::testing {

const KernelTable& emulated_kernels();

// Calls of libraries by kernels/cuda in this process so far; for launches see blocks.h.
struct EmulatedCalls {
  std::atomic<int> products{0};          // by cuBLASLt
  std::atomic<int> convolutions{0};      // by cuDNN
  std::atomic<int> compiled_engines{0};  // that cuDNN compiled at run time
  std::atomic<int> attentions{0};        // by cuDNN
  std::atomic<int> workspaces{0};
};
EmulatedCalls& emulated_calls();

}  // namespace lockstep::testing

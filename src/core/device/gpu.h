// A GPU as the driver describes it, and the error for the case that there is none.
#pragma once

#include <cstddef>
#include <string>

#include "lockstep/core/error.h"

namespace lockstep::cuda {

// A GPU that this process may use, at its ordinal among those that CUDA_VISIBLE_DEVICES selects, in its order.
struct Gpu {
  int ordinal = 0;
  std::string name;  // "NVIDIA H200"
  std::string uuid;  // "GPU-..."
  std::string pci;   // "0000:17:00.0"
  std::size_t memory_bytes = 0;
  int compute_major = 0, compute_minor = 0;
};

// There is no GPU to use, and nothing is broken: no driver, no device, or no CUDA part. A program that did not request
// a GPU then uses the CPU. All other reasons why a GPU cannot be used (a driver too old, a missing library) are a plain
// Error, for every program.
class NoGpu : public Error {
 public:
  using Error::Error;
};

}  // namespace lockstep::cuda

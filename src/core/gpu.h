// A GPU as the driver describes it. Kernels see this header: nothing with fmt, which nvcc does not compile.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::cuda {

// A GPU that this process may use, at its ordinal among them: what CUDA_VISIBLE_DEVICES leaves, in its order.
struct Gpu {
  int ordinal = 0;
  std::string name;  // "NVIDIA H200"
  std::string uuid;  // "GPU-..."
  std::string pci;   // "0000:17:00.0"
  std::size_t memory_bytes = 0;
  int compute_major = 0, compute_minor = 0;
};

}  // namespace lockstep::cuda

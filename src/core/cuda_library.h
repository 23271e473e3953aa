// What the CUDA part offers. It is a library of its own, loaded when a program first asks for a GPU: one build runs on machines with a
// driver and without.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/core/device.h"
#include "src/core/memory_policy.h"

namespace lockstep::cuda {

// Changes with whatever passes between program and library: classes, the kernel table.
inline constexpr int kLibraryVersion = 2;

struct Gpu {
  int ordinal = 0;
  std::string name;  // "NVIDIA H200"
  std::string uuid;  // "GPU-..."
  std::string pci;   // "0000:17:00.0"
  std::size_t memory_bytes = 0;
  int compute_major = 0, compute_minor = 0;
};

class Library {
 public:
  virtual ~Library() = default;
  // Those that CUDA_VISIBLE_DEVICES leaves, in its order. Throws Error with the remedy: no driver, a driver older than the toolkit, no GPU.
  virtual const std::vector<Gpu>& gpus() = 0;
  // Made at the first call, kept for good; later policies are ignored. Throws InvalidArgument for a GPU that is not there, Error for one
  // that this build has no code for.
  virtual Device& device(int ordinal, const MemoryPolicy& policy) = 0;
};

// The library's one symbol; null: it was built for another version.
using LibraryEntry = Library* (*)(int version);
inline constexpr const char* kLibraryEntry = "lockstep_cuda_library";
inline constexpr const char* kLibraryFile = "liblockstep_cuda.so";

}  // namespace lockstep::cuda

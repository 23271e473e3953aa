// The interface of the CUDA part. It is a library of its own, loaded when a program first asks for a GPU: one build runs on machines with a
// driver and without.
#pragma once

#include <vector>

#include "lockstep/core/device.h"
#include "src/core/gpu.h"
#include "src/core/memory_policy.h"

namespace lockstep::cuda {

// Changes with all that passes between program and library: classes, the kernel table.
inline constexpr int kLibraryVersion = 3;

class Library {
 public:
  virtual ~Library() = default;
  // Makes no CUDA context. Throws NoGpu (no driver, no device) or Error (a driver older than the toolkit), both with the remedy.
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

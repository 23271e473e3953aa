// The interface of the CUDA part, a separate library that is loaded when a program first requests a GPU: so one build
// runs on machines with a driver and without.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/device.h"
#include "src/core/device/gpu.h"
#include "src/core/memory/memory_policy.h"

namespace lockstep::cuda {

// Identifies everything that passes between program and library. Change it by hand with the classes; the kernel table's
// share (FNV-1a of its list) changes automatically.
inline constexpr int kLibraryVersion = [] {
  constexpr std::string_view kInterface = "6"
#define LOCKSTEP_OPERATOR(name, ...) " " #name "(" #__VA_ARGS__ ")"
#include "lockstep/core/operators.def"
      ;
  std::uint32_t hash = 2166136261U;
  for (const char letter : kInterface) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619U;
  return static_cast<int>(hash & 0x7fffffffU);
}();

class Library {
 public:
  virtual ~Library() = default;
  // Creates no CUDA context. Throws NoGpu (no driver, no device) or Error (a driver older than the toolkit); both
  // messages have the remedy.
  virtual const std::vector<Gpu>& gpus() = 0;
  // The device of this name on that GPU. Created by the first call and never destroyed; later policies are ignored.
  // Throws InvalidArgument if the GPU does not exist, and Error if this build has no code for it.
  virtual Device& device(int ordinal, const std::string& name, const MemoryPolicy& policy) = 0;
};

// The library's only symbol. Returns null if it was built for another version.
using LibraryEntry = Library* (*)(int version);
inline constexpr const char* kLibraryEntry = "lockstep_cuda_library";
inline constexpr const char* kLibraryFile = "liblockstep_cuda.so";

}  // namespace lockstep::cuda

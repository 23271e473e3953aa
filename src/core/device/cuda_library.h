// The interface of the CUDA part. It is a library of its own, loaded when a program first asks for a GPU: one build
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

// Changes with all that passes between program and library: by hand with the classes, by itself with the kernel table
// (FNV-1a of its list).
inline constexpr int kLibraryVersion = [] {
  constexpr std::string_view kInterface = "5"
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
  // Makes no CUDA context. Throws NoGpu (no driver, no device) or Error (a driver older than the toolkit), both with
  // the remedy.
  virtual const std::vector<Gpu>& gpus() = 0;
  // The device of this name on that GPU. Made at the first call, kept for good; later policies are ignored. Throws
  // InvalidArgument for a GPU that is not there, Error for one that this build has no code for.
  virtual Device& device(int ordinal, const std::string& name, const MemoryPolicy& policy) = 0;
};

// The library's one symbol; null: it was built for another version.
using LibraryEntry = Library* (*)(int version);
inline constexpr const char* kLibraryEntry = "lockstep_cuda_library";
inline constexpr const char* kLibraryFile = "liblockstep_cuda.so";

}  // namespace lockstep::cuda

// Common parts of operators on a CUDA stream: checked calls, the cudaStream_t of a Stream, scratch memory.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "lockstep/core/buffer.h"
#include "lockstep/core/kernels.h"

namespace lockstep::cuda {

using Index = std::int64_t;

// Throws Error with the call, its place in the source, and CUDA's reason.
[[noreturn]] void throw_cuda_error(cudaError_t error, const char* call, const char* file, int line);

#define LOCKSTEP_CUDA(call)                                                          \
  do {                                                                               \
    if (const cudaError_t lockstep_error = (call); lockstep_error != cudaSuccess)    \
      ::lockstep::cuda::throw_cuda_error(lockstep_error, #call, __FILE__, __LINE__); \
  } while (false)

cudaStream_t native(Stream& stream);

[[noreturn]] void throw_no_float(DType type);  // InvalidArgument

bool has_code_for_this_device();  // true if our kernels can run on the thread's device

// Memory from the allocator of the stream's device, which is returned in the stream's order: the driver is not called,
// and a graph that holds the operator keeps the memory.
Buffer take_scratch(Stream& stream, std::size_t bytes);

// Memory for the duration of one operator. Sizes are rounded, so that a few blocks serve all operators of a network.
class Scratch {
 public:
  Scratch(Stream& stream, std::size_t bytes);
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  template <typename T> T* as() const { return static_cast<T*>(static_cast<void*>(memory_.data())); }

 private:
  Buffer memory_;
};

}  // namespace lockstep::cuda

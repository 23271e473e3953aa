#include "tests/kernels/emulated_cuda/table.h"

#include <cstdlib>

#include "kernels/cuda/stream.h"
#include "kernels/families.h"

namespace lockstep {

namespace cuda {
cudaStream_t native(Stream&) { return nullptr; }

// From the heap, so that a sanitizer knows its bounds.
Buffer take_scratch(Stream&, std::size_t bytes) {
  ++testing::emulated_calls().workspaces;
  auto* const memory = static_cast<std::byte*>(std::malloc(bytes));
  return Buffer(memory, bytes, nullptr, [memory] { std::free(memory); });
}
}  // namespace cuda

testing::EmulatedCalls& testing::emulated_calls() {
  static EmulatedCalls calls;
  return calls;
}

const KernelTable& testing::emulated_kernels() {
  static const KernelTable kTable = cuda::cuda_kernels();
  return kTable;
}

}  // namespace lockstep

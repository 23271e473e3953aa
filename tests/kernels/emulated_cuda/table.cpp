#include "tests/kernels/emulated_cuda/table.h"

#include <cstdlib>
#include <utility>

#include "kernels/cuda/stream.h"
#include "kernels/families.h"
#include "tests/kernels/emulated_cuda/blocks.h"
#include "tests/support/recording_device.h"

namespace {

lockstep::testing::HostStream* as_host_stream(void* stream) {
  return static_cast<lockstep::testing::HostStream*>(stream);
}

}  // namespace

void emulated_cuda::on_stream(void* stream, std::function<void()> work) {
  if (stream == nullptr) return work();
  as_host_stream(stream)->push("", std::move(work));
}

namespace lockstep {

namespace cuda {
cudaStream_t native(Stream& stream) { return stream.native(); }

// From the stream's device, as on a GPU; for the CPU from the heap, so that a sanitizer knows its bounds.
Buffer take_scratch(Stream& stream, std::size_t bytes) {
  ++testing::emulated_calls().workspaces;
  if (stream.native() != nullptr) return as_host_stream(stream.native())->take_scratch(bytes);
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

#include "tests/kernels/emulated_cuda/table.h"

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/stream.h"

namespace lockstep {

namespace cuda {
cudaStream_t native(Stream&) { return nullptr; }
}  // namespace cuda

const KernelTable& testing::emulated_kernels() {
  static const KernelTable kTable = cuda::cuda_kernels();
  return kTable;
}

}  // namespace lockstep

// The families that oneDNN takes over.
#include "kernels/onednn/kernels.h"
#include "src/core/cpu_device.h"

namespace lockstep {

void use_onednn_kernels(KernelTable& table) {
  onednn::use_attention(table);
  onednn::use_conv2d(table);
  onednn::use_linear(table);
  onednn::use_matmul(table);
}

}  // namespace lockstep

// The entries that oneDNN takes over.
#include "kernels/onednn/kernels.h"
#include "src/core/cpu_device.h"

namespace lockstep {

void use_onednn_kernels(KernelTable& table) {
  table.conv2d = onednn::conv2d;
  table.conv2d_backward_data = onednn::conv2d_backward_data;
  table.conv2d_backward_weights = onednn::conv2d_backward_weights;
  table.linear = onednn::linear;
  table.linear_backward_data = onednn::linear_backward_data;
  table.linear_backward_weights = onednn::linear_backward_weights;
}

}  // namespace lockstep

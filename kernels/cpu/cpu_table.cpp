#include "kernels/cpu/cpu_table.h"

#include "src/core/device/cpu_device.h"
#if LOCKSTEP_WITH_ONEDNN
#include "kernels/onednn/onednn_kernels.h"
#endif

namespace lockstep {

KernelTable cpu_kernels() {
#if LOCKSTEP_WITH_ONEDNN
  onednn::limit_isa();
#endif
  KernelTable table = reference_kernels();
  use_fast_cpu_kernels(table);
  use_add_layer_norm(table);
  use_convolutions(table);
  use_linear_products(table);
  use_matrix_products(table);
  use_attention(table);
  return table;
}

}  // namespace lockstep

#include "kernels/cpu/cpu_table.h"

#include "src/core/device/cpu_device.h"

namespace lockstep {

KernelTable cpu_kernels() {
  KernelTable table = reference_kernels();
  use_fast_cpu_kernels(table);
#if LOCKSTEP_WITH_ONEDNN
  use_onednn_kernels(table);
#else
  log_slow_products(table);
#endif
  return table;
}

}  // namespace lockstep

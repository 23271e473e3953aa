// The list of devices: the one place in core/ that knows which device kinds and CPU kernel families are built in.
#include "lockstep/core/device.h"
#include "src/core/cpu_device.h"

namespace lockstep {

namespace {

KernelTable cpu_kernels() {
  KernelTable table = reference_kernels();
  use_fast_cpu_kernels(table);
#if LOCKSTEP_WITH_ONEDNN
  use_onednn_kernels(table);
#endif
  return table;
}

}  // namespace

Device& cpu_device() {
  // Never destroyed: buffers may outlive static destruction.
  static CpuDevice* const kDevice = new CpuDevice(cpu_kernels());
  return *kDevice;
}

Device& local_device(int) { return cpu_device(); }

}  // namespace lockstep

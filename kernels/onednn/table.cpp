// The entries that oneDNN takes over.
#include "src/core/cpu_device.h"

namespace lockstep {

void use_onednn_kernels(KernelTable& table) {}

}  // namespace lockstep

// The CUDA device's kernel table, built from the list of families.
#include "kernels/cuda/cuda_kernels.h"

namespace lockstep::cuda {

KernelTable cuda_kernels() {
  KernelTable table;
#define LOCKSTEP_FAMILY(name, speed) use_##name(table);
#include "lockstep/core/operators.def"
  // Families of layers above core: each has one function that adds its kernels.
  for (const auto add : {add_augment_kernels, add_int8_kernels, add_power_sgd_kernels, add_top_k_kernels}) add(table);
  return table;
}

}  // namespace lockstep::cuda

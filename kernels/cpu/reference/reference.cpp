// The CPU's kernel tables, built from the list of families: the plain kernels.
#include "kernels/cpu/reference/reference.h"

namespace lockstep {

namespace {

KernelTable make_reference_kernels() {
  KernelTable table;
#define LOCKSTEP_FAMILY(name, speed) reference::use_##name(table);
#include "lockstep/core/operators.def"
  // Families of layers above core: each has one function that adds its kernels.
  for (const auto add : {reference::add_augment_kernels, reference::add_int8_kernels, reference::add_power_sgd_kernels,
                         reference::add_top_k_kernels})
    add(table);
  return table;
}

}  // namespace

const KernelTable& reference_kernels() {
  static const KernelTable kTable = make_reference_kernels();
  return kTable;
}

}  // namespace lockstep

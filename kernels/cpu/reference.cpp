// The CPU's kernel tables, from the list of families: the plain kernels, and vector loops in their place.
#include "kernels/cpu/reference.h"

#include "src/core/device/cpu_device.h"

namespace lockstep {

namespace {

KernelTable make_reference_kernels() {
  KernelTable table;
#define LOCKSTEP_FAMILY(name, speed) reference::use_##name(table);
#include "lockstep/core/operators.def"
  // Families of the layers above core: each has one function that adds its kernels, named here.
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

void use_fast_cpu_kernels(KernelTable& table) {
#define LOCKSTEP_USE_plain(name)
#define LOCKSTEP_USE_fast(name) fast::use_##name(table);
#define LOCKSTEP_FAMILY(name, speed) LOCKSTEP_USE_##speed(name)
#include "lockstep/core/operators.def"
}

}  // namespace lockstep

// The kernel table: the operators that a device provides, on raw memory. operators.def lists them.
#pragma once

#include <cstdint>
#include <span>

#include "lockstep/core/elementwise_functions.h"
#include "lockstep/core/kernel_families.h"
#include "lockstep/core/operator_shapes.h"
#include "lockstep/core/strides.h"
#include "lockstep/core/update_params.h"
#include "lockstep/core/view.h"

#pragma GCC visibility push(default)
namespace lockstep {

class Stream;

struct KernelTable {
#define LOCKSTEP_OPERATOR(name, ...) void (*name)(__VA_ARGS__, Stream & stream) = nullptr;
#include "lockstep/core/operators.def"

  // Operators of the layers above core.
  KernelFamilies families;
};

// The plain kernels on the CPU: the reference for all other devices and for the faster CPU kernels.
const KernelTable& reference_kernels();

}  // namespace lockstep
#pragma GCC visibility pop

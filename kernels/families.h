// The functions that fill a kernel table: one for each family of core/operators.def, and functions for entire tables.
#pragma once

#include "lockstep/core/kernels.h"

namespace lockstep {

// The CPU's plain loops: the reference.
namespace reference {
#define LOCKSTEP_FAMILY(name, speed) void use_##name(KernelTable& table);
#include "lockstep/core/operators.def"
}  // namespace reference

namespace cuda {
#define LOCKSTEP_FAMILY(name, speed) void use_##name(KernelTable& table);
#include "lockstep/core/operators.def"

KernelTable cuda_kernels();  // with all families
}  // namespace cuda

}  // namespace lockstep

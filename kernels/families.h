// The functions that fill a kernel table: one for each family of core/operators.def, and functions for entire tables.
#pragma once

#include "lockstep/core/kernels.h"

namespace lockstep {

#define LOCKSTEP_DECLARE_plain(name)
#define LOCKSTEP_DECLARE_fast(name) void use_##name(KernelTable& table);

// The CPU's plain loops: the reference.
namespace reference {
#define LOCKSTEP_FAMILY(name, speed) void use_##name(KernelTable& table);
#include "lockstep/core/operators.def"
}  // namespace reference

// The CPU's vector loops.
namespace fast {
#define LOCKSTEP_FAMILY(name, speed) LOCKSTEP_DECLARE_##speed(name)
#include "lockstep/core/operators.def"
}  // namespace fast

namespace cuda {
#define LOCKSTEP_FAMILY(name, speed) void use_##name(KernelTable& table);
#include "lockstep/core/operators.def"

KernelTable cuda_kernels();  // with all families
}  // namespace cuda

#undef LOCKSTEP_DECLARE_plain
#undef LOCKSTEP_DECLARE_fast

}  // namespace lockstep

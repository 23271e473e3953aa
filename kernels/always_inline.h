// Functions that are inlined into every caller, and so compiled for the caller's instruction set.
#pragma once

#include "lockstep/core/host_device.h"

#define LOCKSTEP_ALWAYS_INLINE inline __attribute__((always_inline))

// A formula for one element, which the loops of the CPU and the kernels of a GPU share.
#define LOCKSTEP_FORMULA LOCKSTEP_HOST_DEVICE LOCKSTEP_ALWAYS_INLINE

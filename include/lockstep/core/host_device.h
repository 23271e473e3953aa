// Before functions that the CPU and kernels of a GPU call. A compiler of another kind defines it otherwise, before it
// includes this.
#pragma once

#ifndef LOCKSTEP_HOST_DEVICE
#define LOCKSTEP_HOST_DEVICE
#endif

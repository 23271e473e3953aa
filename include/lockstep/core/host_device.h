// Prefix of functions that both the CPU and GPU kernels call. Another compiler can define it before including this
// header.
#pragma once

#ifndef LOCKSTEP_HOST_DEVICE
#define LOCKSTEP_HOST_DEVICE
#endif

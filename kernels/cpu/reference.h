// Common parts of the plain kernels, one file an operator family: each is its formula written down, one thread, no
// tricks. They are the oracle, so sums run in double and are rounded once. core/operators.def says what each one means.
#pragma once

#include "kernels/cpu/any_float.h"
#include "kernels/families.h"
#include "lockstep/core/device.h"

namespace lockstep::reference {

using Index = std::int64_t;

// A gradient lands in its slot: written, or added to what is there.
inline void store(float& slot, double value, bool accumulate) {
  slot = accumulate ? slot + static_cast<float>(value) : static_cast<float>(value);
}

// max(value, 0) that lets NaN through, so that a broken model shows in its loss.
inline float clamp_at_zero(float value) { return value < 0 ? 0 : value; }

// The last step of convolutions and linear layers: column sums of y_grad, whose last dimension is bias_grad's.
void bias_backward(In y_grad, Out bias_grad, Stream&);

// Families of the layers above core.
void add_augment_kernels(KernelTable& table);
void add_int8_kernels(KernelTable& table);
void add_power_sgd_kernels(KernelTable& table);
void add_top_k_kernels(KernelTable& table);

}  // namespace lockstep::reference

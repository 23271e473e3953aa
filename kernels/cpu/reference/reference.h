// Common parts of the plain kernels: each is the formula written down, on one thread, without optimisation. They are
// the reference for all others, so sums are computed in double and rounded once. core/operators.def defines each
// operator.
#pragma once

#include "kernels/cpu/math/in_parts.h"
#include "kernels/families.h"
#include "lockstep/core/device.h"

namespace lockstep::reference {

using Index = std::int64_t;

// Stores a gradient in its slot: overwrites the value or adds to it.
inline void store(float& slot, double value, bool accumulate) {
  slot = accumulate ? slot + static_cast<float>(value) : static_cast<float>(value);
}

// max(value, 0) that keeps NaN, so that a broken model shows in its loss.
inline float clamp_at_zero(float value) { return value < 0 ? 0 : value; }

// The last step of convolutions and linear layers: column sums of y_grad, whose last dimension is bias_grad's.
void bias_backward(In y_grad, Out bias_grad, Stream&);

// Families of layers above core.
void add_augment_kernels(KernelTable& table);
void add_int8_kernels(KernelTable& table);
void add_power_sgd_kernels(KernelTable& table);
void add_top_k_kernels(KernelTable& table);

}  // namespace lockstep::reference

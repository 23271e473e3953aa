// The demands of operators with linear layers on their operands.
#pragma once

#include "lockstep/tensor/tensor.h"

namespace lockstep {

// Names of the operands in messages.
struct LinearNames {
  const char *x = "x", *weight = "weight", *bias = "bias";
};

// Throws InvalidArgument that names the operation, unless weight is (O, I) and bias (O) or undefined, for x (..., I).
void check_linear_operands(const char* operation, const Tensor& x, const Tensor& weight, const Tensor& bias,
                           const LinearNames& names = {});

}  // namespace lockstep

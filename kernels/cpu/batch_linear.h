// The forward pass of linear layers, seen from the weights: y^T = weight * x^T. The weights, the large operand, are read
// once as they lie; only the small batch is transposed. A general sgemm packs the weights first, for each batch anew.
#pragma once

#include "lockstep/core/device.h"

namespace lockstep::batch_linear {

// Batches in multiples of 64, on a CPU with AVX-512.
bool suits(const LinearShape& shape);

// As the entry of the kernel table; `shape` must suit. Threads share the output features.
void linear(const LinearShape& shape, const float* x, const float* weight, const float* bias, bool relu, float* y);

}  // namespace lockstep::batch_linear

// The forward pass of linear layers without packing the large operand: y^T = weight * x^T reads the weights once as they lie and transposes
// the small batch, y = x * weight^T of a large batch the other way round. A general sgemm packs both, for each batch anew.
#pragma once

#include "kernels/linear_shape.h"
#include "lockstep/core/device.h"

namespace lockstep::batch_linear {

// On a CPU with AVX-512: batches in multiples of 64, or output features in such and a batch that is not smaller.
bool suits(const LinearShape& shape);

// As the entry of the kernel table; `shape` must suit.
void linear(const LinearShape& shape, const float* x, const float* weight, const float* bias, bool relu, float* y);

}  // namespace lockstep::batch_linear

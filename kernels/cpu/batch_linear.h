// Linear layers of small batches, without packing the large operand, which a general sgemm would do for each batch.
// Forward: y^T = weight * x^T reads the weights once, as stored, and transposes the small batch; for a large batch y =
// x * weight^T does the reverse. Backward: the weights or their gradients, which are much larger than everything else,
// pass through the caches once and are prefetched while earlier rows are multiplied.
#pragma once

#include "kernels/linear_shape.h"
#include "lockstep/core/device.h"

namespace lockstep::batch_linear {

// True on a CPU with AVX-512 if AMX (product_amx.h) does not apply: for batches in multiples of 64, or output features
// in multiples of 64 and a batch that is not smaller.
bool suits(const LinearShape& shape);
// In addition, for input features in multiples of 64: batches of at most 96 if the weights are larger than the
// second-level cache (with smaller weights a sgemm is faster); and batches of at most 128 with at least 48 output
// features, but not batches below 48 if memory limits both alike.
bool suits_backward_data(const LinearShape& shape);
bool suits_backward_weights(const LinearShape& shape);

// The entries of the kernel table; `shape` must suit.
void linear(const LinearShape& shape, const float* x, const float* weight, const float* bias, bool relu, float* y);
void linear_backward_data(const LinearShape& shape, const float* y_grad, const float* weight, float* x_grad,
                          bool accumulate);
void linear_backward_weights(const LinearShape& shape, const float* x, const float* y_grad, float* weight_grad,
                             bool accumulate);

// to (columns, rows) = or += from (rows, columns) transposed. Requires AVX-512.
void transpose(const float* from, std::int64_t rows, std::int64_t columns, float* to, bool accumulate);

}  // namespace lockstep::batch_linear

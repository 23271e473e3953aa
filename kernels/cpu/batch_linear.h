// Linear layers of small batches without packing the large operand. Forward, y^T = weight * x^T reads the weights once
// as they lie and transposes the small batch, y = x * weight^T of a large batch the other way round; backward, the
// weights or their gradients, which are much larger than all else, pass through the caches once, asked for while the
// rows before them are multiplied. A general sgemm packs both operands, for each batch anew.
#pragma once

#include "kernels/linear_shape.h"
#include "lockstep/core/device.h"

namespace lockstep::batch_linear {

// On a CPU with AVX-512, where AMX (product_amx.h) does not serve: batches in multiples of 64, or output features in
// such and a batch that is not smaller.
bool suits(const LinearShape& shape);
// There, of input features in multiples of 64: batches of at most 96 where the weights are larger than the second-level
// cache, in which a sgemm is faster; and of at most 128 with 48 output features or more, but not of less than 48 where
// memory bounds both alike.
bool suits_backward_data(const LinearShape& shape);
bool suits_backward_weights(const LinearShape& shape);

// As the entries of the kernel table; `shape` must suit.
void linear(const LinearShape& shape, const float* x, const float* weight, const float* bias, bool relu, float* y);
void linear_backward_data(const LinearShape& shape, const float* y_grad, const float* weight, float* x_grad,
                          bool accumulate);
void linear_backward_weights(const LinearShape& shape, const float* x, const float* y_grad, float* weight_grad,
                             bool accumulate);

// to (columns, rows) = or += from (rows, columns) transposed. On a CPU with AVX-512.
void transpose(const float* from, std::int64_t rows, std::int64_t columns, float* to, bool accumulate);

}  // namespace lockstep::batch_linear

// Helpers for the dimensions that callers name.
#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/core/dtype.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// A negative `dim` counts from the end. Throws InvalidArgument if a tensor of this shape has no such dimension.
std::size_t dimension_of(std::string_view operation, int dim, const Shape& shape);

// The shape that both are repeated to fill. Throws InvalidArgument, with the operands' names, if extents differ and
// neither is 1.
Shape broadcast_shape(std::string_view operation, const Shape& a, const Shape& b, const Tensor& a_operand = {},
                      const Tensor& b_operand = {});

// A scalar on x's device, of x's float type.
Tensor constant_like(const Tensor& x, float value);
// Throws InvalidArgument for an index outside 0 .. bound - 1. Only on the CPU: on a GPU the host would have to wait.
void check_index(std::string_view operation, const Tensor& index, std::int64_t bound);

// Fills `out` with a scalar of its type on its device.
void fill_with(const OutputView& out, const Tensor& scalar);
// A tensor like x, a float type, filled with the value.
Tensor filled_like(const Tensor& x, float value);

// The same memory under another shape of equal count.
inline InputView viewed(const Tensor& x, const Shape& shape) { return {x.buffer().data(), x.dtype(), shape}; }

}  // namespace lockstep

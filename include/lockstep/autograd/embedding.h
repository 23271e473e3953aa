// Rows of a table, looked up by number.
#pragma once

#include <cstdint>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

inline constexpr std::int64_t kNoPadding = -1;

// weight (V, D), float32; indices (...), int64, in [0, V). Gives (..., D), float32, under an AutoCast rounded to its
// type. The row `padding` gets no gradient. Throws InvalidArgument for an index that is no row on the CPU; on a GPU,
// whose indices the host does not wait for, it gives NaN. Backward adds rows in the order of the indices: the same bits
// every time. On a GPU a block a row of the weight reads all indices.
Tensor embedding(const Tensor& weight, const Tensor& indices, std::int64_t padding = kNoPadding);

}  // namespace lockstep
#pragma GCC visibility pop

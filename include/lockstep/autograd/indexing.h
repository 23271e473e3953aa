// Functions that read or write elements at computed places; gather() is in shapes.h. Float types; indices are int64 on
// x's device. An index outside: InvalidArgument on the CPU; on a GPU, where checking would block the host, NaN in the
// first element along `dim`. Negative dimensions count from the end. Each function throws InvalidArgument that names
// the operator, the argument, the expected and the actual value.
#pragma once

#include <cstdint>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// x, except that element index[.., i, ..] along `dim` is source[.., i, ..], and the last one of several
// (torch.scatter). index has x's number of dimensions, and is at most as large as x in the others and as source in all
// of them.
Tensor scatter(const Tensor& x, int dim, const Tensor& index, const Tensor& source);
Tensor scatter(const Tensor& x, int dim, const Tensor& index, float value);
// The same, added to x, in the order of i.
Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& source);

// The slices of x at index (K) along `dim`, in their order.
Tensor index_select(const Tensor& x, int dim, const Tensor& index);

// `value` where mask (uint8 or int8, broadcast with x) is not 0, else x.
Tensor masked_fill(const Tensor& x, const Tensor& mask, float value);

}  // namespace lockstep
#pragma GCC visibility pop

// Softmax over one dimension.
#pragma once

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// x: float32, float16 or bfloat16, at least one dimension. Returns exp(x_c) / sum over `dim` of exp(x), shifted by the
// maximum so that exp() does not overflow. A line that contains NaN or only -infinity becomes NaN. The last dimension
// is the fastest: for others x is transposed.
Tensor softmax(const Tensor& x, int dim = -1);
Tensor log_softmax(const Tensor& x, int dim = -1);  // x - log(sum of exp(x)): more precise than softmax(x)'s logarithm

}  // namespace lockstep
#pragma GCC visibility pop

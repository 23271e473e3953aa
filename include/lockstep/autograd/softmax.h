// Softmax over the last dimension.
#pragma once

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// x (..., C), float32, float16 or bfloat16. Returns exp(x_c) / sum over the last dimension of exp(x), shifted by the
// maximum so that exp() does not overflow. A row that contains NaN or only -infinity becomes NaN.
Tensor softmax(const Tensor& x);
Tensor log_softmax(const Tensor& x);  // x - log(sum of exp(x)): more precise than the logarithm of softmax(x)

}  // namespace lockstep
#pragma GCC visibility pop

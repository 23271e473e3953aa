// Softmax over the last dimension.
#pragma once

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// x (..., C), float32, float16 or bfloat16: exp(x_c) / sum over the last dimension of exp(x), shifted by the largest so
// that exp() stays in range; a row with NaN, or of -infinity alone, is NaN.
Tensor softmax(const Tensor& x);
Tensor log_softmax(const Tensor& x);  // its logarithm, x - log(sum of exp(x)), without its loss of digits

}  // namespace lockstep
#pragma GCC visibility pop

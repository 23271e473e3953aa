// Dropout (Srivastava et al. 2014).
#pragma once

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// In training, each element of x (float32, float16 or bfloat16) becomes 0 with probability p and x / (1 - p) otherwise.
// In evaluation, returns x itself. Each call draws from this thread's next dropout stream (see tensor/random.h): the
// mask depends neither on the number of ranks nor on the number of threads, and is the same for every type. Backward
// draws the same mask again. Throws InvalidArgument if p is outside [0, 1), and during a capture, because a graph would
// repeat the same mask.
Tensor dropout(const Tensor& x, float p, bool training = true);

// The same for whole channels of x (N, ..., C): each channel of a sample is kept, or becomes 0.
Tensor dropout_channels(const Tensor& x, float p, bool training = true);

}  // namespace lockstep
#pragma GCC visibility pop

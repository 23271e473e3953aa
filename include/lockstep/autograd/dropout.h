// Dropout (Srivastava et al. 2014).
#pragma once

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// In training, each element of x (float32, float16 or bfloat16) becomes 0 with probability p, else x / (1 - p);
// otherwise x itself. Draws this thread's next stream of dropout, see tensor/random.h: the mask depends on neither the
// number of ranks nor that of threads, and is the same for every type. Backward draws it again. InvalidArgument for a p
// outside of [0, 1), and within a capture, whose mask would stay.
Tensor dropout(const Tensor& x, float p, bool training = true);

}  // namespace lockstep
#pragma GCC visibility pop

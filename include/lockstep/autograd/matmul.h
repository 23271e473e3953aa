// Products of two activations. For a product with a weight see linear() in ops.h.
#pragma once

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

struct MatmulOptions {
  bool transpose_a = false, transpose_b = false;  // swap the last two dimensions of a, of b
};

// a is (..., M, K), or (..., K, M) if transposed; b is (..., K, N), or (..., N, K) if transposed. Returns (..., M, N).
// The leading dimensions of a and b are equal, or b is a single matrix and a is not transposed. Under an AutoCast both
// are converted to its type. Throws InvalidArgument if shapes do not match or types differ.
Tensor matmul(const Tensor& a, const Tensor& b, const MatmulOptions& options = {});

}  // namespace lockstep
#pragma GCC visibility pop

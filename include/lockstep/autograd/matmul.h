// Products of matrices that are activations; for a product with a weight, linear() in ops.h.
#pragma once

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

struct MatmulOptions {
  bool transpose_a = false, transpose_b = false;  // the last two dimensions of a, of b
};

// a (..., M, K), or (..., K, M) when it is transposed, times b (..., K, N), or (..., N, K). Gives (..., M, N). The
// leading dimensions of a and b are equal, or b is a single matrix for all of an a that is not transposed. Under an
// AutoCast both are taken in its type. Throws InvalidArgument for shapes that do not match and for unlike types.
Tensor matmul(const Tensor& a, const Tensor& b, const MatmulOptions& options = {});

}  // namespace lockstep
#pragma GCC visibility pop

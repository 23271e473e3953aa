// For operators that compute a sum along with something else.
#pragma once

#include "lockstep/tensor/tensor.h"

namespace lockstep {

// Records `sum`, which holds a + b, as the result of their addition. All three have the same shape and type.
void record_sum(const Tensor& sum, const Tensor& a, const Tensor& b);

}  // namespace lockstep

// From device to device, for models whose parts lie on several.
#pragma once

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// A copy of x on `device`; x itself where it is there already. Of any type; differentiable for float32, float16 and
// bfloat16: the gradient is copied back. Blocks as Tensor::copy_from does. InvalidArgument for an undefined x.
Tensor to_device(const Tensor& x, Device& device);

}  // namespace lockstep
#pragma GCC visibility pop

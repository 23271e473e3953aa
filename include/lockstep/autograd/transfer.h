// Copies between devices, for models whose parts are on several devices.
#pragma once

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// Returns a copy of x on `device`, or x itself if it is already there. Any type; differentiable for float32, float16
// and bfloat16: backward copies the gradient back. Blocks as Tensor::copy_from does. Throws InvalidArgument for an
// undefined x.
Tensor to_device(const Tensor& x, Device& device);

}  // namespace lockstep
#pragma GCC visibility pop

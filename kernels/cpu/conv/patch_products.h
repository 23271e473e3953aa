// Convolutions of any shape as matrix products: the inputs under each output's window are copied to a row of a matrix
// (a patch), which is multiplied by the weights ("im2col", Chellapilla, Puri and Simard 2006). A few hundred patches at
// a time, so that they stay in the second-level cache. Convolutions of 1 x 1 with stride 1 need no copies.
#pragma once

#include "lockstep/core/operator_shapes.h"

namespace lockstep::patch_products {

// The entries of the kernel table, in float32; neither x nor y may be empty. `bias` may be null. Threads share the
// images.
void conv2d(const Conv2dShape& shape, const float* x, const float* weight, const float* bias, bool relu, float* y);
void conv2d_backward_data(const Conv2dShape& shape, const float* y_grad, const float* weight, float* x_grad,
                          bool accumulate);
void conv2d_backward_weights(const Conv2dShape& shape, const float* x, const float* y_grad, float* weight_grad,
                             bool accumulate);

}  // namespace lockstep::patch_products

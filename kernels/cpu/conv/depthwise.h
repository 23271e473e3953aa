// Depthwise convolution: as many groups as channels, each with one filter. Vectors run along the channels, which are
// innermost; libraries vectorise along a group's channels, of which there is only one.
#pragma once

#include "lockstep/core/operator_shapes.h"

namespace lockstep::depthwise {

bool suits(const Conv2dShape& shape);

// The entries of the kernel table, in float32; `shape` must suit. `bias` may be null. Threads share the images; in
// conv2d_backward_weights they share the channels.
void conv2d(const Conv2dShape& shape, const float* x, const float* weight, const float* bias, bool relu, float* y);
void conv2d_backward_data(const Conv2dShape& shape, const float* y_grad, const float* weight, float* x_grad,
                          bool accumulate);
void conv2d_backward_weights(const Conv2dShape& shape, const float* x, const float* y_grad, float* weight_grad,
                             bool accumulate);

}  // namespace lockstep::depthwise

// Convolutions in groups of 2, 4 or 8 channels: vectors run along the channels of several groups. Libraries vectorise
// along the channels of one group and leave most lanes empty.
#pragma once

#include "lockstep/core/operator_shapes.h"

namespace lockstep::grouped_conv {

// True for as many filters as channels in a group, channels in multiples of a vector, at least as many as a group has,
// and kernels of width three and stride 1.
bool suits(const Conv2dShape& shape);

// The entries of the kernel table, in float32; `shape` must suit. `bias` may be null. Threads share images.
void conv2d(const Conv2dShape& shape, const float* x, const float* weight, const float* bias, bool relu, float* y);
void conv2d_backward_data(const Conv2dShape& shape, const float* y_grad, const float* weight, float* x_grad,
                          bool accumulate);
void conv2d_backward_weights(const Conv2dShape& shape, const float* x, const float* y_grad, float* weight_grad,
                             bool accumulate);

}  // namespace lockstep::grouped_conv

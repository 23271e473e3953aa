// A convolution as a matrix product of the windows of an image, one per row, and the weights; for convolutions for
// which cuDNN has no reproducible engine.
#pragma once

#include "lockstep/core/operator_shapes.h"

namespace lockstep {
class Stream;
}

namespace lockstep::cuda {

// windows (batch * out_height * out_width, kernel_height * kernel_width * in_channels): each row holds one window of x,
// 0 outside the image.
void gather_windows(const Conv2dShape& shape, const float* x, float* windows, Stream& stream);
// The gradient of gather_windows(): each element of x is the sum of all window elements at its position, in a fixed
// order.
void sum_windows(const Conv2dShape& shape, const float* windows, float* x, Stream& stream);

// float32. Processes as many images at a time as fit as windows into the workspace limit, at least one. y, x_grad and
// weight_grad are overwritten.
void product_forward(const Conv2dShape& shape, const float* x, const float* weight, float* y, Stream& stream);
void product_backward_data(const Conv2dShape& shape, const float* y_grad, const float* weight, float* x_grad,
                           Stream& stream);
void product_backward_weights(const Conv2dShape& shape, const float* x, const float* y_grad, float* weight_grad,
                              Stream& stream);

}  // namespace lockstep::cuda

// A convolution as a product: the windows of an image, one under another, times the weights. For what cuDNN has no way
// to do that gives the same bits every time.
#pragma once

#include "lockstep/core/operator_shapes.h"

namespace lockstep {
class Stream;
}

namespace lockstep::cuda {

// windows (batch * out_height * out_width, kernel_height * kernel_width * in_channels): row by row what the kernel sees
// of x, 0 outside.
void gather_windows(const Conv2dShape& shape, const float* x, float* windows, Stream& stream);
// x = the sums of all windows' elements that lie on it, always in the same order: gather_windows()'s gradient.
void sum_windows(const Conv2dShape& shape, const float* windows, float* x, Stream& stream);

// float32; as many images at a time as the workspace limit lets stand in windows, at least one. y, x_grad and
// weight_grad are written.
void product_forward(const Conv2dShape& shape, const float* x, const float* weight, float* y, Stream& stream);
void product_backward_data(const Conv2dShape& shape, const float* y_grad, const float* weight, float* x_grad,
                           Stream& stream);
void product_backward_weights(const Conv2dShape& shape, const float* x, const float* y_grad, float* weight_grad,
                              Stream& stream);

}  // namespace lockstep::cuda

// Winograd's filtering (winograd.h) of images with few channels, forward and for the gradients of weights and biases.
// The products of points are too short for a matrix product, so they are computed in registers together with the
// outputs.
#pragma once

#include "lockstep/core/device.h"
#include "lockstep/core/kernels.h"

namespace lockstep::winograd_narrow {

// True for 5x5 kernels of stride 1, padding smaller than the kernel, up to four input channels, output channels in
// multiples of a vector, and images on which tiles of 4x4 waste little.
bool suits(const Conv2dShape& shape);

// The entries of the kernel table; `bias`, and the data of `bias_grad`, may be null. `shape` must suit. Threads share
// the tiles, and the parts of the sums over them.
void conv2d(const Conv2dShape& shape, const float* x, const float* weight, const float* bias, bool relu, float* y);
void conv2d_backward_weights(const Conv2dShape& shape, const float* x, const float* y_grad, Out weight_grad,
                             Out bias_grad);

}  // namespace lockstep::winograd_narrow

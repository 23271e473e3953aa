// Winograd's filtering (winograd.h) of images with few channels, forward and for the gradients of weights and biases:
// products of points are too short for a matrix product, and are made in registers on the way to the outputs.
#pragma once

#include "lockstep/core/device.h"
#include "lockstep/core/kernels.h"

namespace lockstep::winograd_narrow {

// 5x5 kernels of stride 1, pads smaller than the kernel, up to four input channels, output channels in multiples of 16,
// images of which tiles of 4x4 waste little; on a CPU with AVX-512.
bool suits(const Conv2dShape& shape);

// As the entries of the kernel table; `bias`, and the data of `bias_grad`, may be null. `shape` must suit. Tiles, and
// parts of the sums over them, are shared among threads.
void conv2d(const Conv2dShape& shape, const float* x, const float* weight, const float* bias, bool relu, float* y);
void conv2d_backward_weights(const Conv2dShape& shape, const float* x, const float* y_grad, Out weight_grad,
                             Out bias_grad);

}  // namespace lockstep::winograd_narrow

// Convolutions with 5x5 and 3x3 kernels by Winograd's minimal filtering (Winograd 1980; Lavin and Gray 2016), F(4x4,
// 5x5) and F(4x4, 3x3): a tile of 4x4 outputs takes 64 products per channel pair instead of 400, and 36 instead of 144.
// Compared with direct sums, rounding errors are about ten times larger (root mean square 4e-6 and 2e-6 of the
// results'; docs/operators.md). An input that is NaN or infinite makes the outputs that read it NaN or infinite, and
// possibly all others of their tiles; so do finite values whose products with the transforms' factors overflow, from
// about 1e36 on.
#pragma once

#include "lockstep/core/device.h"

namespace lockstep::winograd {

// True for 5x5 and 3x3 kernels of stride 1, padding smaller than the kernel, channels in multiples of a vector up to
// about 256 x 256 (3x3) or 192 x 192 (5x5), and images on which tiles of 4x4 waste little, and which have more tiles
// the more channels there are.
bool suits(const Conv2dShape& shape);

// The entries of the kernel table; `shape` must suit. Threads share the tiles, and the parts of the sums over them.
void conv2d(const Conv2dShape& shape, const float* x, const float* weight, const float* bias, bool relu, float* y);
void conv2d_backward_data(const Conv2dShape& shape, const float* y_grad, const float* weight, float* x_grad,
                          bool accumulate);
void conv2d_backward_weights(const Conv2dShape& shape, const float* x, const float* y_grad, float* weight_grad,
                             bool accumulate);

}  // namespace lockstep::winograd

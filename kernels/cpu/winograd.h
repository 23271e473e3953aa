// Convolutions of 5x5 and 3x3 kernels by Winograd's minimal filtering (Winograd 1980; Lavin and Gray 2016), F(4x4, 5x5)
// and F(4x4, 3x3): a tile of 4x4 outputs takes 64 products a channel pair instead of 400, and 36 instead of 144. Sums
// differ from direct ones by float rounding, some twenty times its usual size (root mean square 3e-6 and 2e-6 of the
// results'). An input that is no number, or infinite, makes NaN or infinity of the outputs that read it and of up to
// all others of their tiles; so do finite values whose products with the transforms' factors overflow, from some 1e36
// on.
#pragma once

#include "lockstep/core/device.h"

namespace lockstep::winograd {

// 5x5 and 3x3 kernels of stride 1, pads smaller than the kernel, channels in multiples of 16, images of which tiles of
// 4x4 waste little, and more of those the more channels there are, up to some 256 x 256 (3x3) or 192 x 192 (5x5); on a
// CPU with AVX-512.
bool suits(const Conv2dShape& shape);

// As the entries of the kernel table; `shape` must suit. Tiles, and parts of the sums over them, are shared among
// threads.
void conv2d(const Conv2dShape& shape, const float* x, const float* weight, const float* bias, bool relu, float* y);
void conv2d_backward_data(const Conv2dShape& shape, const float* y_grad, const float* weight, float* x_grad,
                          bool accumulate);
void conv2d_backward_weights(const Conv2dShape& shape, const float* x, const float* y_grad, float* weight_grad,
                             bool accumulate);

}  // namespace lockstep::winograd

// 5x5 convolutions by Winograd's minimal filtering (Winograd 1980; Lavin and Gray 2016), F(2x2, 5x5): a tile of 2x2
// outputs takes 36 products a channel pair instead of 100, so that it runs at up to twice the speed of direct convolution at
// the processor's peak. Sums differ from direct ones by float rounding, some ten times its usual size.
#pragma once

#include "lockstep/core/device.h"

namespace lockstep::winograd {

// 5x5 kernels of stride 1, pads up to 4, channels in multiples of 64, on a CPU with AVX-512.
bool suits(const Conv2dShape& shape);

// As the entries of the kernel table; `shape` must suit. Tiles, and parts of the sums over them, are shared among threads.
void conv2d(const Conv2dShape& shape, const float* x, const float* weight, const float* bias, bool relu, float* y);
void conv2d_backward_data(const Conv2dShape& shape, const float* y_grad, const float* weight, float* x_grad, bool accumulate);
void conv2d_backward_weights(const Conv2dShape& shape, const float* x, const float* y_grad, float* weight_grad, bool accumulate);

}  // namespace lockstep::winograd

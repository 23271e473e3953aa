// Gradients of the weights of convolutions with few input channels, as images have them: a general one fills vectors
// with input channels, and most lanes stay empty. Here vectors lie along the output channels, and each tap of each
// input channel is a factor of its own.
#pragma once

#include "lockstep/core/device.h"
#include "lockstep/core/kernels.h"

namespace lockstep::narrow_conv {

// Up to eight input channels and output channels in multiples of 16, on a CPU with AVX-512.
bool suits(const Conv2dShape& shape);

// As the entry of the kernel table, of memory; `bias_grad` may be empty. `shape` must suit. Threads share the images.
void conv2d_backward_weights(const Conv2dShape& shape, const float* x, const float* y_grad, Out weight_grad,
                             Out bias_grad);

// The end of such a pass: sums (taps, outs) of every kernel position and input channel, behind them (outs) of biases,
// to where they are asked for.
void store_gradients(const float* sums, std::int64_t taps, std::int64_t outs, Out weight_grad, Out bias_grad);

}  // namespace lockstep::narrow_conv

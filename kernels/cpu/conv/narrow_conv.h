// Gradients of the weights of convolutions with few input channels, such as images. A general implementation fills
// vectors with input channels and leaves most lanes empty; here vectors run along the output channels, and each tap of
// each input channel is a separate factor.
#pragma once

#include "lockstep/core/device.h"
#include "lockstep/core/kernels.h"

namespace lockstep::narrow_conv {

// True for up to eight input channels and output channels in multiples of a vector.
bool suits(const Conv2dShape& shape);

// The entry of the kernel table, on raw memory; `bias_grad` may be empty. `shape` must suit. Threads share the images.
void conv2d_backward_weights(const Conv2dShape& shape, const float* x, const float* y_grad, Out weight_grad,
                             Out bias_grad);

// The last step: stores sums (taps, outs) of every kernel position and input channel, followed by those of the biases
// (outs), in the gradients.
void store_gradients(const float* sums, std::int64_t taps, std::int64_t outs, Out weight_grad, Out bias_grad);

}  // namespace lockstep::narrow_conv

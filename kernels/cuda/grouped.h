// Direct convolution in groups, for convolutions for which cuDNN has no reproducible engine.
#pragma once

#include "lockstep/core/operator_shapes.h"

namespace lockstep {
class Stream;
}

namespace lockstep::cuda {

// float32; y, x_grad and weight_grad are overwritten.
void grouped_forward(const Conv2dShape& shape, const float* x, const float* weight, float* y, Stream& stream);
void grouped_backward_data(const Conv2dShape& shape, const float* y_grad, const float* weight, float* x_grad,
                           Stream& stream);
void grouped_backward_weights(const Conv2dShape& shape, const float* x, const float* y_grad, float* weight_grad,
                              Stream& stream);

}  // namespace lockstep::cuda

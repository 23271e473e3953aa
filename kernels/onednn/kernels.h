// Convolutions and matrix products by oneDNN; entries of the kernel table.
#pragma once

#include "lockstep/core/device.h"

namespace lockstep::onednn {

void conv2d(const Conv2dShape&, const float* x, const float* weight, const float* bias, bool relu, float* y, Stream&);
void conv2d_backward_data(const Conv2dShape&, const float* y_grad, const float* weight, float* x_grad, bool accumulate, Stream&);
void conv2d_backward_weights(const Conv2dShape&, const float* x, const float* y_grad, float* weight_grad, float* bias_grad,
                             bool accumulate_weight, bool accumulate_bias, Stream&);

void linear(const LinearShape&, const float* x, const float* weight, const float* bias, bool relu, float* y, Stream&);
void linear_backward_data(const LinearShape&, const float* y_grad, const float* weight, float* x_grad, bool accumulate, Stream&);
void linear_backward_weights(const LinearShape&, const float* x, const float* y_grad, float* weight_grad, float* bias_grad,
                             bool accumulate_weight, bool accumulate_bias, Stream&);

}  // namespace lockstep::onednn

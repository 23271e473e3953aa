// Products and convolutions of float32 by oneDNN, for the dispatchers of kernels/cpu.
#pragma once

#include "kernels/cpu/products/product.h"
#include "lockstep/core/kernels.h"

namespace lockstep::onednn {

// LOCKSTEP_ISA limits oneDNN as it limits our own kernels. Call this before oneDNN computes anything.
void limit_isa();

// On the calling thread; neither with a bias nor with ReLU.
void multiply_alone(const Product& product);

// Threads share the images. `bias`, and the data of `bias_grad`, may be null.
void conv2d(const Conv2dShape& shape, const float* x, const float* weight, const float* bias, bool relu, float* y);
void conv2d_backward_data(const Conv2dShape& shape, const float* y_grad, const float* weight, float* x_grad,
                          bool accumulate);
void conv2d_backward_weights(const Conv2dShape& shape, const float* x, const float* y_grad, Out weight_grad,
                             Out bias_grad);

}  // namespace lockstep::onednn

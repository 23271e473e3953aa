// Products and convolutions by oneDNN, for the dispatchers of kernels/cpu.
#pragma once

#include "kernels/cpu/products/product.h"
#include "lockstep/core/kernels.h"

namespace lockstep::onednn {

// LOCKSTEP_ISA limits oneDNN as it limits our own kernels. Call this before oneDNN computes anything.
void limit_isa();

// True if the processor multiplies bfloat16 numbers, and LOCKSTEP_ISA allows it.
bool multiplies_bfloat16();

// On the calling thread; neither with a bias nor with ReLU. The second one is for operands of bfloat16.
void multiply_alone(const Product& product);
void multiply_bfloat16_alone(const Product& product);

// Threads share the images. `bias`, and the data of `bias_grad`, may be null. x, y, weight, bias and the gradients of
// activations are float32; with multiplies_bfloat16() they may all be bfloat16. The gradients of parameters are
// float32.
void conv2d(const Conv2dShape& shape, In x, In weight, In bias, bool relu, Out y);
void conv2d_backward_data(const Conv2dShape& shape, In y_grad, In weight, Out x_grad);
void conv2d_backward_weights(const Conv2dShape& shape, In x, In y_grad, Out weight_grad, Out bias_grad);

}  // namespace lockstep::onednn

// The operators of the CUDA device on 16-bit floats (core/mixed_kernels.h): the same kernels as kernels.h's, in the same files, on another
// element type; sums run in float32.
#pragma once

#include "lockstep/core/mixed_kernels.h"

namespace lockstep::cuda::mixed {

using Index = std::int64_t;

void convert(DType from, const void* in, DType to, void* out, Index count, bool accumulate, Stream&);
void add(DType, const void* a, const void* b, void* out, Index count, Stream&);
void scale(DType, const void* in, float factor, void* out, Index count, bool accumulate, Stream&);
void relu(DType, const void* in, void* out, Index count, Stream&);
void relu_backward(DType, const void* y, void* grad, Index count, Stream&);

void bias(DType, void* y, const void* bias, Index rows, Index channels, Stream&);
void bias_backward(DType, const void* y_grad, float* bias_grad, Index rows, Index channels, bool accumulate, Stream&);

void conv2d(DType, const Conv2dShape&, const void* x, const void* weight, const void* bias, bool relu, void* y, Stream&);
void conv2d_backward_data(DType, const Conv2dShape&, const void* y_grad, const void* weight, void* x_grad, bool accumulate, Stream&);
void conv2d_backward_weights(DType, const Conv2dShape&, const void* x, const void* y_grad, float* weight_grad, float* bias_grad,
                             bool accumulate_weight, bool accumulate_bias, Stream&);

void max_pool2d(DType, const Pool2dShape&, const void* x, void* y, std::uint16_t* argmax, Stream&);
void max_pool2d_backward(DType, const Pool2dShape&, const void* y_grad, const std::uint16_t* argmax, void* x_grad, bool accumulate,
                         Stream&);

void lrn(DType, const LrnParams&, const void* x, void* y, float* scale, Stream&);
void lrn_backward(DType, const LrnParams&, const void* x, const void* y, const float* scale, const void* y_grad, void* x_grad,
                  bool accumulate, Stream&);

void linear(DType, const LinearShape&, const void* x, const void* weight, const void* bias, bool relu, void* y, Stream&);
void linear_backward_data(DType, const LinearShape&, const void* y_grad, const void* weight, void* x_grad, bool accumulate, Stream&);
void linear_backward_weights(DType, const LinearShape&, const void* x, const void* y_grad, float* weight_grad, float* bias_grad,
                             bool accumulate_weight, bool accumulate_bias, Stream&);

}  // namespace lockstep::cuda::mixed

// The vector loops of the CPU: entries of the kernel table that replace the plain kernels. One thread each; every loop
// is built for several instruction sets (core/cpu_dispatch.h), and all builds give the same bits.
#pragma once

#include "lockstep/core/device.h"

namespace lockstep::fast {

using Index = std::int64_t;

void fill(float* out, float value, Index count, Stream&);
void add(const float* a, const float* b, float* out, Index count, Stream&);
void accumulate(float* sum, const float* addend, Index count, Stream&);
void scale(const float* in, float factor, float* out, Index count, bool accumulate, Stream&);
void scale_by(const float* in, const float* factor, float* out, Index count, bool accumulate, Stream&);
void relu(const float* in, float* out, Index count, Stream&);  // also in place
// The largest absolute value; infinity or NaN where there is one, and 0 of nothing.
float largest_magnitude(const float* x, Index count);
void relu_backward(const float* y, float* grad, Index count, Stream&);
void bias(float* y, const float* bias, Index rows, Index channels, Stream&);
void bias_backward(const float* y_grad, float* bias_grad, Index rows, Index channels, bool accumulate, Stream&);

void max_pool2d(const Pool2dShape&, const float* x, float* y, std::uint16_t* argmax, Stream&);
void max_pool2d_backward(const Pool2dShape&, const float* y_grad, const std::uint16_t* argmax, float* x_grad, bool accumulate, Stream&);

void lrn(const LrnParams&, const float* x, float* y, float* scale, Stream&);
void lrn_backward(const LrnParams&, const float* x, const float* y, const float* scale, const float* y_grad, float* x_grad, bool accumulate,
                  Stream&);

void l2_loss(const float* x, Index count, float* loss, Stream&);

void sgd_step(std::span<const SgdTensor> tensors, const SgdParams&, Stream&);
void find_bad_gradients(std::span<const SgdTensor> tensors, LossScaleState* state, Stream&);

}  // namespace lockstep::fast

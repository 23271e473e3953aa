// The operators of the CUDA device: entries of the kernel table (core/kernels.h says what each does). One file a family.
#pragma once

#include "lockstep/core/kernels.h"

namespace lockstep::cuda {

KernelTable cuda_kernels();  // all of them

void fill(float* out, float value, std::int64_t count, Stream&);
void add(const float* a, const float* b, float* out, std::int64_t count, Stream&);
void accumulate(float* sum, const float* addend, std::int64_t count, Stream&);
void scale(const float* in, float factor, float* out, std::int64_t count, bool accumulate, Stream&);
void scale_by(const float* in, const float* factor, float* out, std::int64_t count, bool accumulate, Stream&);
void relu(const float* in, float* out, std::int64_t count, Stream&);
void relu_backward(const float* y, float* grad, std::int64_t count, Stream&);

void bias(float* y, const float* bias, std::int64_t rows, std::int64_t channels, Stream&);
void bias_backward(const float* y_grad, float* bias_grad, std::int64_t rows, std::int64_t channels, bool accumulate, Stream&);

void conv2d(const Conv2dShape&, const float* x, const float* weight, const float* bias, bool relu, float* y, Stream&);
void conv2d_backward_data(const Conv2dShape&, const float* y_grad, const float* weight, float* x_grad, bool accumulate, Stream&);
void conv2d_backward_weights(const Conv2dShape&, const float* x, const float* y_grad, float* weight_grad, float* bias_grad,
                             bool accumulate_weight, bool accumulate_bias, Stream&);

void linear(const LinearShape&, const float* x, const float* weight, const float* bias, bool relu, float* y, Stream&);
void linear_backward_data(const LinearShape&, const float* y_grad, const float* weight, float* x_grad, bool accumulate, Stream&);
void linear_backward_weights(const LinearShape&, const float* x, const float* y_grad, float* weight_grad, float* bias_grad,
                             bool accumulate_weight, bool accumulate_bias, Stream&);

void max_pool2d(const Pool2dShape&, const float* x, float* y, std::uint16_t* argmax, Stream&);
void max_pool2d_backward(const Pool2dShape&, const float* y_grad, const std::uint16_t* argmax, float* x_grad, bool accumulate, Stream&);

void require_lrn_channels(const LrnParams&);  // throws InvalidArgument: a row must fit into shared memory
void lrn(const LrnParams&, const float* x, float* y, float* scale, Stream&);
void lrn_backward(const LrnParams&, const float* x, const float* y, const float* scale, const float* y_grad, float* x_grad, bool accumulate,
                  Stream&);

void softmax_cross_entropy(const float* logits, const std::int64_t* labels, std::int64_t batch, std::int64_t classes, float* loss,
                           float* probabilities, Stream&);
void softmax_cross_entropy_backward(const float* probabilities, const std::int64_t* labels, std::int64_t batch, std::int64_t classes,
                                    const float* loss_grad, float* logits_grad, bool accumulate, Stream&);
void l2_loss(const float* x, std::int64_t count, float* loss, Stream&);

void sgd_step(std::span<const SgdTensor> tensors, const SgdParams&, Stream&);
void find_bad_gradients(std::span<const SgdTensor> tensors, LossScaleState* state, Stream&);
void update_loss_scale(const LossScaleRule&, LossScaleState* state, Stream&);

// Families of the layers above core.
void add_augment_kernels(KernelTable& table);

}  // namespace lockstep::cuda

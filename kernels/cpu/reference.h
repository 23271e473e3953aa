// The plain kernels, one file an operator family: each is its formula written down, one thread, no tricks. They are the
// oracle, so sums run in double and are rounded once. See core/kernels.h for what each one means.
#pragma once

#include "lockstep/core/device.h"

namespace lockstep::reference {

using Index = std::int64_t;

// A gradient lands in its slot: written, or added to what is there.
inline void store(float& slot, double value, bool accumulate) {
  slot = accumulate ? slot + static_cast<float>(value) : static_cast<float>(value);
}

// max(value, 0) that lets NaN through, so that a broken model shows in its loss.
inline float clamp_at_zero(float value) { return value < 0 ? 0 : value; }

// The optimizer's step under loss scaling, see LossScaleState.
inline bool skips(const SgdParams& params) { return params.loss_scale != nullptr && params.loss_scale->found_bad != 0; }
inline float unscale_of(const SgdParams& params) { return params.loss_scale == nullptr ? 1.0F : 1 / params.loss_scale->scale; }

void fill(float* out, float value, Index count, Stream&);
void add(const float* a, const float* b, float* out, Index count, Stream&);
void accumulate(float* sum, const float* addend, Index count, Stream&);
void scale(const float* in, float factor, float* out, Index count, bool accumulate, Stream&);
void scale_by(const float* in, const float* factor, float* out, Index count, bool accumulate, Stream&);
void relu(const float* in, float* out, Index count, Stream&);
void relu_backward(const float* y, float* grad, Index count, Stream&);
void bias(float* y, const float* bias, Index rows, Index channels, Stream&);
void bias_backward(const float* y_grad, float* bias_grad, Index rows, Index channels, bool accumulate, Stream&);

void conv2d(const Conv2dShape&, const float* x, const float* weight, const float* bias, bool relu, float* y, Stream&);
void conv2d_backward_data(const Conv2dShape&, const float* y_grad, const float* weight, float* x_grad, bool accumulate, Stream&);
void conv2d_backward_weights(const Conv2dShape&, const float* x, const float* y_grad, float* weight_grad, float* bias_grad,
                             bool accumulate_weight, bool accumulate_bias, Stream&);

void max_pool2d(const Pool2dShape&, const float* x, float* y, std::uint16_t* argmax, Stream&);
void max_pool2d_backward(const Pool2dShape&, const float* y_grad, const std::uint16_t* argmax, float* x_grad, bool accumulate, Stream&);

void lrn(const LrnParams&, const float* x, float* y, float* scale, Stream&);
void lrn_backward(const LrnParams&, const float* x, const float* y, const float* scale, const float* y_grad, float* x_grad, bool accumulate,
                  Stream&);

void linear(const LinearShape&, const float* x, const float* weight, const float* bias, bool relu, float* y, Stream&);
void linear_backward_data(const LinearShape&, const float* y_grad, const float* weight, float* x_grad, bool accumulate, Stream&);
void linear_backward_weights(const LinearShape&, const float* x, const float* y_grad, float* weight_grad, float* bias_grad,
                             bool accumulate_weight, bool accumulate_bias, Stream&);

void softmax_cross_entropy(const float* logits, const Index* labels, Index batch, Index classes, float* loss, float* probabilities,
                           Stream&);
void softmax_cross_entropy_backward(const float* probabilities, const Index* labels, Index batch, Index classes, const float* loss_grad,
                                    float* logits_grad, bool accumulate, Stream&);
void l2_loss(const float* x, Index count, float* loss, Stream&);

void sgd_step(std::span<const SgdTensor> tensors, const SgdParams&, Stream&);
void find_bad_gradients(std::span<const SgdTensor> tensors, LossScaleState* state, Stream&);
void update_loss_scale(const LossScaleRule&, LossScaleState* state, Stream&);

// Families of the layers above core.
void add_augment_kernels(KernelTable& table);

}  // namespace lockstep::reference

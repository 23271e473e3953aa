// Attention by our own kernels, which take every float type and compute in float32: for float32, and for what cuDNN
// does not take (attention.cpp).
#pragma once

#include "kernels/attention_shape.h"
#include "kernels/cuda/cuda_kernels.h"

namespace lockstep::cuda {

// As the operators of these names, for shapes that are not empty.
void float_attention(const AttentionParams&, In q, In k, In v, Out y, Out log_sums, Stream&);
void float_attention_backward(const AttentionParams&, In q, In k, In v, In y, In log_sums, In y_grad, Out q_grad,
                              Out k_grad, Out v_grad, Stream&);

}  // namespace lockstep::cuda

// Attention as two matrix products with a softmax between them, for what the kernels of a device do not compute.
#pragma once

#include "lockstep/autograd/attention.h"

namespace lockstep {

// q (N, T, H, D), k and v (N, S, K, D) of one type; `options` fit them, and `scale` is their factor.
Tensor attention_by_products(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
                             float scale);

}  // namespace lockstep

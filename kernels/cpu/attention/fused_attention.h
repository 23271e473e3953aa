// Attention of one head in which products and softmax alternate on a few rows of scores. These never leave the first
// caches, and little of what a causal mask hides is computed.
#pragma once

#include "kernels/cpu/attention/attention_head.h"

namespace lockstep::fused_attention {

// Writes to `y`, the memory of all heads, and to `log_sums` of this head's queries.
void head_forward(const HeadOperands& head, float* y, float* log_sums);
void head_backward(const HeadOperands& head, const float* y, const float* y_grad, const float* log_sums,
                   const HeadGradients& to);

}  // namespace lockstep::fused_attention

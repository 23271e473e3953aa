// Attention of one head in which products and softmax take turns on a few rows of scores, which never leave the nearest
// caches, and which computes little of what a causal mask hides. For CPUs with AVX-512.
#pragma once

#include "kernels/cpu/attention_head.h"

namespace lockstep::fused_attention {

bool suits();

// To `y`, the memory of all heads, and `log_sums`, of this head's queries.
void head_forward(const HeadOperands& head, float* y, float* log_sums);
void head_backward(const HeadOperands& head, const float* y, const float* y_grad, const float* log_sums,
                   const HeadGradients& to);

}  // namespace lockstep::fused_attention

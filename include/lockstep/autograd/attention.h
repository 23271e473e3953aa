// Scaled dot product attention (Vaswani et al. 2017, section 3.2.1), in memory linear in the number of positions (Dao
// et al. 2022).
//
// Positions come before heads, (N, T, H, D), as a linear layer gives them: nothing is transposed. PyTorch's order is
// (N, H, T, D).
#pragma once

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

struct AttentionOptions {
  bool causal = false;  // position t sees positions 0 to t only
  float scale = 0;      // of the scores q . k; 0: 1 / sqrt(D)
};

// q (N, T, H, D), k and v (N, S, H, D), float32, float16 or bfloat16, all alike: softmax(scale * q * k^T) * v of each
// head, (N, T, H, D). Causal attention has S = T. D is 128 at most on a GPU. Throws InvalidArgument for shapes that do
// not match, and for queries without keys.
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options = {});

// The same of qkv (N, T, 3, H, D), which holds q, k and v: the result of one linear layer, read where it lies.
Tensor scaled_dot_product_attention(const Tensor& qkv, const AttentionOptions& options = {});

}  // namespace lockstep
#pragma GCC visibility pop

// Scaled dot product attention (Vaswani et al. 2017, section 3.2.1), with memory linear in the number of positions (Dao
// et al. 2022).
//
// Positions come before heads, (N, T, H, D), which is the layout a linear layer produces, so nothing is transposed.
// PyTorch uses (N, H, T, D).
#pragma once

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

struct AttentionOptions {
  bool causal = false;  // position t attends only to positions 0 to t
  float scale = 0;      // factor for the scores q . k; 0 means 1 / sqrt(D)
};

// Returns softmax(scale * q * k^T) * v for each head, of shape (N, T, H, D). q is (N, T, H, D), k and v are (N, S, H,
// D); all three have the same type: float32, float16 or bfloat16. Causal attention requires S = T. On a GPU, D is at
// most 256. Throws InvalidArgument if shapes do not match or if there are queries but no keys.
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options = {});

// The same for one tensor qkv (N, T, 3, H, D) that holds q, k and v, such as the result of one linear layer. It is read
// in place.
Tensor scaled_dot_product_attention(const Tensor& qkv, const AttentionOptions& options = {});

}  // namespace lockstep
#pragma GCC visibility pop

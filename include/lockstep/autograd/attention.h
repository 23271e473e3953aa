// Scaled dot product attention (Vaswani et al. 2017, section 3.2.1), with memory linear in the number of positions (Dao
// et al. 2022).
//
// Positions come before heads, (N, T, H, D), which is the layout a linear layer produces, so nothing is transposed.
// PyTorch uses (N, H, T, D).
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// The place of a causal mask when there are not as many keys (S) as queries (T).
enum class CausalAlignment {
  kEqualLengths,  // S = T is required
  kUpperLeft,     // query t sees the keys 0 to t: PyTorch's is_causal
  kLowerRight     // query t sees the keys 0 to S - T + t: the queries are the last positions, as with a cache of keys
};

struct AttentionOptions {
  bool causal = false;  // position t attends only to positions 0 to t
  float scale = 0;      // factor for the scores q . k; 0 means 1 / sqrt(D)
  CausalAlignment causal_alignment = CausalAlignment::kEqualLengths;
  // Sample n has key_lengths[n] keys, and those after them are padding that no query sees. Empty: all keys count.
  std::vector<std::int64_t> key_lengths = {};
  // Broadcast to (N, H, T, S). uint8 or int8: a query sees the keys where it is not 0. A float type: added to the
  // scaled scores; -infinity hides a key. Differentiable.
  Tensor mask = {};
  // The probability with which each of the attention's probabilities becomes 0, while the others are divided by
  // 1 - dropout. Leave it 0 in evaluation.
  float dropout = 0;
};

// Returns softmax(scale * q * k^T) * v for each head, of shape (N, T, H, D). q is (N, T, H, D), k and v are (N, S, K,
// D), where K divides H: head h reads head h / (H / K) of the keys and values ("grouped-query attention", Ainslie et
// al. 2023). All three have the same type: float32, float16 or bfloat16. A query that sees no key gives zeros, and so
// do its gradients. On a GPU, D is at most 256.
//
// Memory is linear in T and S, except with a dropout or a mask that requires a gradient, and on a GPU also with any
// mask, K < H, key lengths, or a causal mask of other than T keys: then the probabilities (N, H, T, S), float32, are
// stored for backward. A mask that is not float32, or has one column for all keys, is converted by each call, and the
// copy is kept until backward: convert a mask that many layers share before.
//
// Throws InvalidArgument if shapes or options do not fit, or if there are queries but no keys.
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options = {});

// The same for one tensor qkv (N, T, 3, H, D) that holds q, k and v, such as the result of one linear layer. It is read
// in place.
Tensor scaled_dot_product_attention(const Tensor& qkv, const AttentionOptions& options = {});

}  // namespace lockstep
#pragma GCC visibility pop

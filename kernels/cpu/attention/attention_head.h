// One head of an attention, for kernels that compute one head at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention_shape.h"
#include "lockstep/core/kernels.h"

namespace lockstep {

// Rows of one head, `stride` apart; null: left out.
template <typename T> struct HeadMatrix {
  T* first;
  std::int64_t stride;
  T* row(std::int64_t t) const { return first + t * stride; }
};
template <typename T>
HeadMatrix<T> head_matrix(T* first, std::int64_t stride, std::int64_t rows, std::int64_t n, std::int64_t at) {
  return {first == nullptr ? nullptr : first + n * rows * stride + at, stride};
}

// The operands of one head.
struct HeadOperands {
  AttentionShape shape;  // its `keys` are those that the sample's queries may see
  AttentionParams params;
  HeadMatrix<const float> q, k, v;
  std::int64_t n, at, key_at;  // the head's sample, and its offset in a row of q, and of k and v
  std::int64_t all_keys;       // also those that no query sees
  const float* mask;           // the head's; null: none

  HeadOperands(const AttentionShape& s, const AttentionParams& params, In q_view, In k_view, In v_view,
               std::int64_t head)
      : shape(s),
        params(params),
        n(head / s.heads),
        at(head % s.heads * s.width),
        key_at(head % s.heads / s.group() * s.width),
        all_keys(s.keys),
        mask(params.mask) {
    const auto from = attention_operands(s, q_view.floats(), k_view.floats(), v_view.floats());
    q = head_matrix(from.q, s.operand_row(), s.queries, n, at);
    k = head_matrix(from.k, s.key_row(), s.keys, n, key_at);
    v = head_matrix(from.v, s.key_row(), s.keys, n, key_at);
    if (params.key_lengths != nullptr) shape.keys = std::min(s.keys, params.key_lengths[n]);
    if (mask != nullptr) mask += n * params.mask_strides[0] + head % s.heads * params.mask_strides[1];
  }

  // Rows of y, or of its gradient.
  template <typename T> HeadMatrix<T> rows_of(T* y) const { return head_matrix(y, shape.row(), shape.queries, n, at); }

  // The number of the `keys` keys from `key` on that a query may see.
  std::int64_t visible(std::int64_t query, std::int64_t key, std::int64_t keys) const {
    return params.causal ? std::clamp<std::int64_t>(query + params.causal_offset - key + 1, 0, keys) : keys;
  }
  const float* mask_row(std::int64_t query, std::int64_t key) const {
    return mask == nullptr ? nullptr : mask + query * params.mask_strides[2] + key;
  }
  // The first query that may see a key.
  std::int64_t first_to_see(std::int64_t key) const {
    return params.causal ? std::max<std::int64_t>(0, key - params.causal_offset) : 0;
  }
};

// The gradients of one head.
struct HeadGradients {
  HeadMatrix<float> q, k, v;
  bool accumulate_q, accumulate_k, accumulate_v;

  // `adds_to_keys`: the gradients of k and v are added to those of an earlier head of the group.
  HeadGradients(const HeadOperands& head, Out q_grad, Out k_grad, Out v_grad, bool adds_to_keys = false) {
    const AttentionShape& s = head.shape;
    const auto to = attention_operands(s, q_grad.floats(), k_grad.floats(), v_grad.floats());
    q = head_matrix(to.q, s.operand_row(), s.queries, head.n, head.at);
    k = head_matrix(to.k, s.key_row(), head.all_keys, head.n, head.key_at);
    v = head_matrix(to.v, s.key_row(), head.all_keys, head.n, head.key_at);
    accumulate_q = q_grad.accumulate;
    accumulate_k = adds_to_keys || (s.packed ? q_grad : k_grad).accumulate;
    accumulate_v = adds_to_keys || (s.packed ? q_grad : v_grad).accumulate;
  }
};

}  // namespace lockstep

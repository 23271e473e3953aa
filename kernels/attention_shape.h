// The sizes of an attention and the layout of its operands: three separate arrays, or one whose rows hold all three.
#pragma once

#include <cstdint>

#include "lockstep/core/host_device.h"
#include "lockstep/core/view.h"

namespace lockstep {

struct AttentionShape {
  std::int64_t batch, queries, keys, heads, width;  // N, T, S, H, D
  bool packed;                                      // one array q (N, T, 3, H, D)
  std::int64_t key_heads = 0;                       // K, which divides H; 0: H

  LOCKSTEP_HOST_DEVICE std::int64_t heads_of_keys() const { return key_heads == 0 ? heads : key_heads; }
  LOCKSTEP_HOST_DEVICE std::int64_t group() const { return heads / heads_of_keys(); }  // heads that read the same keys
  LOCKSTEP_HOST_DEVICE std::int64_t row() const { return heads * width; }              // elements of a row of y
  // The distance, in elements, from one row of q, or of k or v, to the next.
  LOCKSTEP_HOST_DEVICE std::int64_t operand_row() const { return packed ? 3 * row() : row(); }
  LOCKSTEP_HOST_DEVICE std::int64_t key_row() const { return packed ? 3 * row() : heads_of_keys() * width; }
  bool empty() const { return batch * heads * width * queries * keys == 0; }
};

// Takes the views of q and k, or of their gradients.
inline AttentionShape attention_shape(In q, In k) {
  const bool packed = q.shape.dims() == 5;
  const std::int64_t heads = q.shape[packed ? 3 : 2];
  return {q.shape[0],
          q.shape[1],
          packed ? q.shape[1] : k.shape[1],
          heads,
          q.shape[packed ? 4 : 3],
          packed,
          packed ? heads : k.shape[2]};
}

// The first elements of q, k and v, or of their gradients; null: left out.
template <typename T> struct AttentionOperands { T *q, *k, *v; };
template <typename T> AttentionOperands<T> attention_operands(const AttentionShape& s, T* q, T* k, T* v) {
  return s.packed && q != nullptr ? AttentionOperands<T>{q, q + s.row(), q + 2 * s.row()}
                                  : AttentionOperands<T>{q, k, v};
}

}  // namespace lockstep

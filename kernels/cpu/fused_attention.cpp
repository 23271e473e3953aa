// Forward processes six queries at a time (Dao et al. 2022, "FlashAttention", algorithms 1 and 4): their scores with a
// tile of keys are one product, each row is a step of the online softmax, and the results are factors of another
// product. Backward processes a block of queries at a time, whose scores and gradients are stored for the products that
// sum over queries. Operands that products read column by column are first transposed into panels: a head's keys and
// values, once for each direction. Of the part that a causal mask hides, products compute at most the rest of a vector
// of 16 keys and of a group of six rows.
#include "kernels/cpu/fused_attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/rows.h"
#include "lockstep/core/device.h"
#include "lockstep/core/error.h"

#if defined(__x86_64__)
#include "kernels/cpu/attention_avx512.h"
#endif

namespace lockstep::fused_attention {

#if defined(__x86_64__)

namespace {

constexpr Index kPanel = 4 * kLanes;
constexpr Index kGroup = 6;                  // rows that are multiplied together
constexpr Index kBlock = 16 * kGroup;        // queries whose scores backward stores
constexpr Index kTile = 192;                 // keys: full panels and full groups
constexpr Index kScoreRow = kTile + kLanes;  // so that neighbouring rows are in different sets of the cache

// Several arrays in one piece of memory; each begins at a cache line.
class Arrays {
 public:
  explicit Arrays(Index floats) : memory_(cpu_device().allocate(static_cast<std::size_t>(floats) * sizeof(float))) {}
  float* take(Index floats) {
    used_ += floats;
    return reinterpret_cast<float*>(memory_.data()) + used_ - floats;
  }

 private:
  Buffer memory_;
  Index used_ = 0;
};

Index padded(Index count) { return vectors_of(count) * kLanes; }
Index panels(Index count) { return (count + kPanel - 1) / kPanel * kPanel; }

struct ForwardMemory {
  Arrays arrays;
  float *keys, *values, *scores, *sums;

  explicit ForwardMemory(const AttentionShape& s)
      : arrays(panels(s.keys) * s.width + (s.keys + kGroup) * padded(s.width) + kGroup * kScoreRow),
        keys(arrays.take(panels(s.keys) * s.width)),
        values(arrays.take(s.keys * padded(s.width))),
        scores(arrays.take(kGroup * kScoreRow)),
        sums(arrays.take(kGroup * padded(s.width))) {}
};

template <int kRows> LOCKSTEP_TARGET_AVX512 void forward_group(const HeadOperands& head, Index query,
                                                               const ForwardMemory& memory, const HeadMatrix<float>& y,
                                                               float* log_sums) {
  const Index width = head.shape.width, row_of_sums = padded(width);
  RowState states[kRows];
  for (Index key = 0; key < head.shape.keys; key += kTile) {
    const Index in_tile = std::min(kTile, head.shape.keys - key), keys = head.visible(query + kRows - 1, key, in_tile);
    if (keys == 0) break;
    avx512::multiply_vectors<kRows>(vectors_of(keys), width, head.q.row(query), head.q.stride, 1,
                                    memory.keys + key * width, kPanel, kPanel * width, memory.scores, kScoreRow, false);
    for (int row = 0; row < kRows; ++row) {
      const float before = online_softmax_row(memory.scores + row * kScoreRow, head.visible(query + row, key, in_tile),
                                              vectors_of(keys), head.params.scale, states[row]);
      float* const sums = memory.sums + row * row_of_sums;
      if (key > 0) store_row(sums, before, row_of_sums, false, sums);
    }
    avx512::multiply_vectors<kRows>(vectors_of(width), keys, memory.scores, kScoreRow, 1,
                                    memory.values + key * row_of_sums, row_of_sums, kPanel, memory.sums, row_of_sums,
                                    key > 0);
  }
  for (int row = 0; row < kRows; ++row) {
    store_row(memory.sums + row * row_of_sums, 1 / states[row].sum, width, false, y.row(query + row));
    log_sums[query + row] = states[row].largest + std::log(states[row].sum);
  }
}

struct BackwardMemory {
  Arrays arrays;
  float *keys_across, *values_across, *keys;        // as in forward, and the keys row by row
  float *queries, *y_grads, *scores, *score_grads;  // of a block
  float *q_grads, *k_grads, *v_grads;               // of a block; of all keys
  float* deltas;                                    // y . y_grad of each query

  explicit BackwardMemory(const AttentionShape& s)
      : arrays(2 * panels(s.keys) * s.width + (s.keys + 3 * kBlock + 2 * (s.keys + kGroup)) * padded(s.width) +
               2 * kBlock * kScoreRow + padded(s.queries)),
        keys_across(arrays.take(panels(s.keys) * s.width)),
        values_across(arrays.take(panels(s.keys) * s.width)),
        keys(arrays.take(s.keys * padded(s.width))),
        queries(arrays.take(kBlock * padded(s.width))),
        y_grads(arrays.take(kBlock * padded(s.width))),
        scores(arrays.take(kBlock * kScoreRow)),
        score_grads(arrays.take(kBlock * kScoreRow)),
        q_grads(arrays.take(kBlock * padded(s.width))),
        k_grads(arrays.take((s.keys + kGroup) * padded(s.width))),
        v_grads(arrays.take((s.keys + kGroup) * padded(s.width))),
        deltas(arrays.take(padded(s.queries))) {}
};

// A block of queries and a tile of keys.
struct Square {
  Index query, rows, key, keys;
};

// Scores, their gradients, and the contribution to the queries' gradients, for rows [row, row + kRows) of a square.
template <int kRows> LOCKSTEP_TARGET_AVX512 void backward_group(const HeadOperands& head, const Square& at, Index row,
                                                                const float* log_sums, const BackwardMemory& memory) {
  const Index width = head.shape.width, padded_width = padded(width),
              keys = head.visible(at.query + row + kRows - 1, at.key, at.keys);
  const Index vectors = vectors_of(keys);
  float *const scores = memory.scores + row * kScoreRow, *const grads = memory.score_grads + row * kScoreRow;
  avx512::multiply_vectors<kRows>(vectors, width, memory.queries + row * padded_width, padded_width, 1,
                                  memory.keys_across + at.key * width, kPanel, kPanel * width, scores, kScoreRow,
                                  false);
  avx512::multiply_vectors<kRows>(vectors, width, memory.y_grads + row * padded_width, padded_width, 1,
                                  memory.values_across + at.key * width, kPanel, kPanel * width, grads, kScoreRow,
                                  false);
  for (Index r = 0; r < kRows; ++r) {
    const Index query = at.query + row + r;
    score_gradients_row(scores + r * kScoreRow, grads + r * kScoreRow, head.visible(query, at.key, at.keys), vectors,
                        head.params.scale, log_sums[query], memory.deltas[query]);
  }
  avx512::multiply_vectors<kRows>(vectors_of(width), keys, grads, kScoreRow, 1, memory.keys + at.key * padded_width,
                                  padded_width, kPanel, memory.q_grads + row * padded_width, padded_width, at.key > 0);
}

// sums (kGroup, width) += factors^T * rows, over `count` rows of scores or of their gradients.
LOCKSTEP_TARGET_AVX512 void add_group(const float* factors, const float* rows, Index count, Index width, float* sums) {
  avx512::multiply_vectors<kGroup>(width / kLanes, count, factors, 1, kScoreRow, rows, width, kPanel, sums, width,
                                   true);
}

// The gradients of the keys and values of a square += sums over its queries, from the first group of rows that sees the
// keys.
void add_key_gradients(const HeadOperands& head, const Square& at, const BackwardMemory& memory) {
  const Index width = padded(head.shape.width);
  for (Index key = 0; key < at.keys; key += kGroup) {
    const Index first_to_see = head.params.causal ? std::max<Index>(0, at.key + key - at.query) : 0,
                row = first_to_see / kGroup * kGroup;
    if (row >= at.rows) return;
    const Index scores = row * kScoreRow + key, rows = row * width, sums = (at.key + key) * width;
    add_group(memory.scores + scores, memory.y_grads + rows, at.rows - row, width, memory.v_grads + sums);
    add_group(memory.score_grads + scores, memory.queries + rows, at.rows - row, width, memory.k_grads + sums);
  }
}

void square_backward(const HeadOperands& head, const Square& at, const float* log_sums, const BackwardMemory& memory) {
  Index row = 0;
  for (; row + kGroup <= at.rows; row += kGroup) backward_group<kGroup>(head, at, row, log_sums, memory);
  for (; row + 2 <= at.rows; row += 2) backward_group<2>(head, at, row, log_sums, memory);
  for (; row < at.rows; ++row) backward_group<1>(head, at, row, log_sums, memory);
  add_key_gradients(head, at, memory);
}

void store_rows(const float* from, Index rows, Index width, const HeadMatrix<float>& to, Index first, bool accumulate) {
  for (Index row = 0; row < rows && to.first != nullptr; ++row, from += padded(width))
    store_row(from, 1, width, accumulate, to.row(first + row));
}

}  // namespace

bool suits() { return cpu_isa() >= Isa::kAvx512; }

void head_forward(const HeadOperands& head, float* y, float* log_sums) {
  const AttentionShape& s = head.shape;
  const ForwardMemory memory(s);
  transpose_keys(head.k.first, head.k.stride, s.keys, s.width, memory.keys);
  copy_rows(head.v.first, head.v.stride, s.keys, s.width, memory.values);
  const HeadMatrix<float> to = head.rows_of(y);
  Index query = 0;
  for (; query + kGroup <= s.queries; query += kGroup) forward_group<kGroup>(head, query, memory, to, log_sums);
  for (; query + 2 <= s.queries; query += 2) forward_group<2>(head, query, memory, to, log_sums);
  for (; query < s.queries; ++query) forward_group<1>(head, query, memory, to, log_sums);
}

void head_backward(const HeadOperands& head, const float* y, const float* y_grad, const float* log_sums,
                   const HeadGradients& to) {
  const AttentionShape& s = head.shape;
  const auto results = head.rows_of(y), grads = head.rows_of(y_grad);
  const BackwardMemory memory(s);
  transpose_keys(head.k.first, head.k.stride, s.keys, s.width, memory.keys_across);
  transpose_keys(head.v.first, head.v.stride, s.keys, s.width, memory.values_across);
  copy_rows(head.k.first, head.k.stride, s.keys, s.width, memory.keys);
  std::fill_n(memory.k_grads, (s.keys + kGroup) * padded(s.width), 0.0F);
  std::fill_n(memory.v_grads, (s.keys + kGroup) * padded(s.width), 0.0F);
  for (Index t = 0; t < s.queries; ++t) memory.deltas[t] = fast::row_product(results.row(t), grads.row(t), s.width);
  for (Index query = 0; query < s.queries; query += kBlock) {
    const Index rows = std::min(kBlock, s.queries - query);
    copy_rows(head.q.row(query), head.q.stride, rows, s.width, memory.queries);
    copy_rows(grads.row(query), grads.stride, rows, s.width, memory.y_grads);
    for (Index key = 0; key < s.keys; key += kTile) {
      const Index keys = head.visible(query + rows - 1, key, std::min(kTile, s.keys - key));
      if (keys > 0) square_backward(head, {query, rows, key, keys}, log_sums, memory);
    }
    store_rows(memory.q_grads, rows, s.width, to.q, query, to.accumulate_q);
  }
  store_rows(memory.k_grads, s.keys, s.width, to.k, 0, to.accumulate_k);
  store_rows(memory.v_grads, s.keys, s.width, to.v, 0, to.accumulate_v);
}

#else

bool suits() { return false; }

void head_forward(const HeadOperands&, float*, float*) { LOCKSTEP_CHECK(false, "no AVX-512 here"); }
void head_backward(const HeadOperands&, const float*, const float*, const float*, const HeadGradients&) {
  LOCKSTEP_CHECK(false, "no AVX-512 here");
}

#endif

}  // namespace lockstep::fused_attention

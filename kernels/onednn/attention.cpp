// Attention in tiles of scores (Dao et al. 2022, "FlashAttention", algorithms 1 and 4): a tile is one small product, a
// pass of the online softmax, and another product. Threads share the heads of the batch. Backward loops over tiles of
// keys, so that one thread writes each head's gradients, in a fixed order.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/any_float.h"
#include "kernels/cpu/attention_head.h"
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/fused_attention.h"
#include "kernels/cpu/rows.h"
#include "kernels/onednn/onednn_kernels.h"
#include "kernels/onednn/product.h"
#include "src/core/process/compute_threads.h"

namespace lockstep::onednn {

namespace {

using Index = std::int64_t;

constexpr Index kTile = 128;  // queries, and keys: 64 KiB of scores

class TileMemory {
 public:
  explicit TileMemory(Index tiles) : memory_(cpu_device().allocate(tiles * kTile * kTile * sizeof(float))) {}
  float* tile(Index n) const { return reinterpret_cast<float*>(memory_.data()) + n * kTile * kTile; }

 private:
  Buffer memory_;
};

// scores = scale * q * k^T, for the queries and keys of one tile.
fast::ScoreTile scores_of(const HeadOperands& head, Index query, Index key, float* memory) {
  const Index rows = std::min(kTile, head.shape.queries - query), keys = std::min(kTile, head.shape.keys - key);
  multiply_alone({'N', 'T', rows, keys, head.shape.width, head.q.row(query), head.k.row(key), false, memory},
                 {head.q.stride, head.k.stride, kTile}, head.params.scale);
  return {memory, rows, keys, kTile, query - key + 1, head.params.causal};
}

void head_forward(const HeadOperands& head, float* out, float* log_sums) {
  const AttentionShape& s = head.shape;
  const HeadMatrix<float> y = head.rows_of(out);
  const TileMemory memory(1);
  std::array<float, kTile> largest, sums, factors;
  for (Index query = 0; query < s.queries; query += kTile) {
    const Index rows = std::min(kTile, s.queries - query),
                keys = head.params.causal ? std::min(s.keys, query + rows) : s.keys;
    std::fill(largest.begin(), largest.end(), -std::numeric_limits<float>::infinity());
    std::fill(sums.begin(), sums.end(), 0.0F);
    for (Index key = 0; key < keys; key += kTile) {
      const fast::ScoreTile tile = scores_of(head, query, key, memory.tile(0));
      fast::online_softmax(tile, largest.data(), sums.data(), factors.data());
      for (Index row = 0; row < rows && key > 0; ++row) fast::scale_row(y.row(query + row), factors[row], s.width);
      multiply_alone({'N', 'N', rows, s.width, tile.keys, tile.scores, head.v.row(key), key > 0, y.row(query)},
                     {kTile, head.v.stride, y.stride});
    }
    for (Index row = 0; row < rows; ++row) {
      fast::scale_row(y.row(query + row), 1 / sums[row], s.width);
      log_sums[query + row] = largest[row] + std::log(sums[row]);
    }
  }
}

// The contribution of one tile, for the queries from `query` on and the keys from `key` on.
void tile_backward(const HeadOperands& head, Index query, Index key, const HeadMatrix<const float>& y_grad,
                   const float* log_sums, const float* deltas, const TileMemory& memory, const HeadGradients& to) {
  const Index width = head.shape.width, first_query = head.params.causal ? key : 0;
  const fast::ScoreTile tile = scores_of(head, query, key, memory.tile(0));
  float* const grads = memory.tile(1);
  fast::probabilities(tile, log_sums + query);
  if (to.v.first != nullptr)
    multiply_alone({'T', 'N', tile.keys, width, tile.rows, tile.scores, y_grad.row(query),
                    to.accumulate_v || query > first_query, to.v.row(key)},
                   {kTile, y_grad.stride, to.v.stride});
  multiply_alone({'N', 'T', tile.rows, tile.keys, width, y_grad.row(query), head.v.row(key), false, grads},
                 {y_grad.stride, head.v.stride, kTile});
  fast::score_gradients(tile, deltas + query, head.params.scale, grads);
  if (to.q.first != nullptr)
    multiply_alone(
        {'N', 'N', tile.rows, width, tile.keys, grads, head.k.row(key), to.accumulate_q || key > 0, to.q.row(query)},
        {kTile, head.k.stride, to.q.stride});
  if (to.k.first != nullptr)
    multiply_alone({'T', 'N', tile.keys, width, tile.rows, grads, head.q.row(query),
                    to.accumulate_k || query > first_query, to.k.row(key)},
                   {kTile, head.q.stride, to.k.stride});
}

void head_backward(const HeadOperands& head, const float* out, const float* out_grad, const float* log_sums,
                   const HeadGradients& to) {
  const AttentionShape& s = head.shape;
  const auto y = head.rows_of(out), y_grad = head.rows_of(out_grad);
  const TileMemory memory(2);
  std::vector<float> deltas(static_cast<std::size_t>(s.queries));
  for (Index t = 0; t < s.queries; ++t)
    deltas[static_cast<std::size_t>(t)] = fast::row_product(y.row(t), y_grad.row(t), s.width);
  for (Index key = 0; key < s.keys; key += kTile)
    for (Index query = head.params.causal ? key : 0; query < s.queries; query += kTile)
      tile_backward(head, query, key, y_grad, log_sums, deltas.data(), memory, to);
}

void attention(const AttentionParams& params, In q, In k, In v, Out y, Out log_sums, Stream& stream) {
  const AttentionShape s = attention_shape(q, k);
  if (s.empty()) return reference_kernels().attention(params, q, k, v, y, log_sums, stream);
  const auto compute = fused_attention::suits() ? fused_attention::head_forward : head_forward;
  in_parallel(s.batch * s.heads, [&](Index head) {
    compute(HeadOperands(s, params, q, k, v, head), y.floats(), log_sums.floats() + head * s.queries);
  });
}

void attention_backward(const AttentionParams& params, In q, In k, In v, In y, In log_sums, In y_grad, Out q_grad,
                        Out k_grad, Out v_grad, Stream& stream) {
  const AttentionShape s = attention_shape(q, k);
  if (s.empty())
    return reference_kernels().attention_backward(params, q, k, v, y, log_sums, y_grad, q_grad, k_grad, v_grad, stream);
  const auto compute = fused_attention::suits() ? fused_attention::head_backward : head_backward;
  in_parallel(s.batch * s.heads, [&](Index nth) {
    const HeadOperands head(s, params, q, k, v, nth);
    compute(head, y.floats(), y_grad.floats(), log_sums.floats() + nth * s.queries, {head, q_grad, k_grad, v_grad});
  });
}

}  // namespace

void use_attention(KernelTable& table) {
  table.attention = any_float<attention>;
  table.attention_backward = any_float<attention_backward>;
}

}  // namespace lockstep::onednn

#include "kernels/cpu/attention_tile.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/fast.h"
#include "kernels/cpu/rows.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fast {

namespace {

LOCKSTEP_CPU_DISPATCH(void, score_gradient_loop, (const float* p, float delta, float scale, Index count, float* grad),
                      (p, delta, scale, count, grad), {
                        LOCKSTEP_INDEPENDENT_ITERATIONS
                        for (Index c = 0; c < count; ++c) grad[c] = p[c] * (grad[c] - delta) * scale;
                      })

}  // namespace

void online_softmax(const ScoreTile& tile, float* largest, float* sums, float* factors) {
  for (Index row = 0; row < tile.rows; ++row) {
    float* const scores = tile.scores + row * tile.stride;
    const Index seen = tile.visible(row);
    const float before = largest[row], most = std::max(before, row_maximum(scores, seen));
    factors[row] = std::exp(before - most);
    sums[row] = sums[row] * factors[row] + row_exponentials(scores, most, seen, scores);
    largest[row] = most;
    std::fill(scores + seen, scores + tile.keys, 0.0F);
  }
}

void probabilities(const ScoreTile& tile, const float* log_sums) {
  for (Index row = 0; row < tile.rows; ++row) {
    float* const scores = tile.scores + row * tile.stride;
    const Index seen = tile.visible(row);
    row_exponentials(scores, log_sums[row], seen, scores);
    std::fill(scores + seen, scores + tile.keys, 0.0F);
  }
}

void score_gradients(const ScoreTile& tile, const float* deltas, float scale, float* grads) {
  for (Index row = 0; row < tile.rows; ++row)
    score_gradient_loop(tile.scores + row * tile.stride, deltas[row], scale, tile.keys, grads + row * tile.stride);
}

}  // namespace lockstep::fast

// The loops over a tile of attention scores, between its matrix products.
#pragma once

#include <cstdint>

namespace lockstep::fast {

// Scores of `rows` queries (rows, keys), `stride` apart. Row r may see its first `first_visible + r` keys, or all.
struct ScoreTile {
  float* scores;
  std::int64_t rows, keys, stride, first_visible;
  bool causal;

  std::int64_t visible(std::int64_t row) const {
    const std::int64_t seen = first_visible + row;
    return !causal || seen > keys ? keys : seen < 0 ? 0 : seen;
  }
};

// One step of the online softmax (Milakov & Gimelshein 2018): scores become exp(score - largest), where `largest` is
// the maximum of the row so far, and 0 where a key is not visible. `sums` are updated; `factors` receives the factors
// by which earlier sums must be multiplied. `largest` begins at -infinity, `sums` at 0. In the first tile every row
// must see a key.
void online_softmax(const ScoreTile& tile, float* largest, float* sums, float* factors);

// Scores become probabilities, exp(score - log_sum) or 0.
void probabilities(const ScoreTile& tile, const float* log_sums);

// (rows, keys): grads = probabilities * (grads - deltas[row]) * scale.
void score_gradients(const ScoreTile& probabilities, const float* deltas, float scale, float* grads);

}  // namespace lockstep::fast

// Attention of each head: score(t, s) = scale * q_t . k_s, p = softmax over s, y_t = sum over s of p(t, s) * v_s.
// Backward, with dp(t, s) = dy_t . v_s and ds = p * (dp - dy_t . y_t) * scale: dv_s = sum over t of p * dy_t, dq_t =
// sum of ds * k_s, dk_s = sum of ds * q_t.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attention_shape.h"
#include "kernels/cpu/reference/reference.h"

namespace lockstep::reference {

namespace {

// Rows of `width` elements, `stride` apart.
struct HeadRows {
  const float* first;
  Index stride;
  const float* operator[](Index t) const { return first + t * stride; }
};

double dot(const float* a, const float* b, Index width) {
  double sum = 0;
  for (Index d = 0; d < width; ++d) sum += static_cast<double>(a[d]) * b[d];
  return sum;
}

struct Head {
  HeadRows q, k, v;
  double scale;
  bool causal;
  Index offset, keys, width;  // keys: those that the sample's queries may see
  const float* mask;          // the head's; null: none
  Index mask_row;

  Index visible(Index t) const { return causal ? std::clamp<Index>(t + offset + 1, 0, keys) : keys; }
  std::vector<double> scores(Index t) const {
    std::vector<double> all(static_cast<std::size_t>(visible(t)));
    for (std::size_t s = 0; s < all.size(); ++s) all[s] = scale * dot(q[t], k[static_cast<Index>(s)], width);
    if (mask != nullptr) add_mask(t, all);
    return all;
  }

 private:
  // Less the largest number of the mask's row, so that the logarithm of the row's sum, a float, keeps its digits.
  void add_mask(Index t, std::vector<double>& scores) const {
    constexpr double kHidden = -std::numeric_limits<double>::infinity();
    double shift = kHidden;
    for (std::size_t s = 0; s < scores.size(); ++s) {
      const double added = mask[t * mask_row + static_cast<Index>(s)];
      shift = added > shift ? added : shift;
    }
    if (std::isinf(shift)) shift = 0;
    for (std::size_t s = 0; s < scores.size(); ++s) {
      const double added = mask[t * mask_row + static_cast<Index>(s)];
      scores[s] = added == kHidden ? kHidden : scores[s] + (added - shift);
    }
  }
};

// Calls visit(n, h, offset of the head in a row).
template <typename Visit> void for_each_head(const AttentionShape& s, Visit&& visit) {
  for (Index n = 0; n < s.batch; ++n)
    for (Index h = 0; h < s.heads; ++h) visit(n, h, h * s.width);
}

// The offset of a head's keys in a row, from that of its queries.
Index key_offset(const AttentionShape& s, Index at) { return s.width == 0 ? 0 : at / s.width / s.group() * s.width; }

Head head_of(const AttentionParams& params, const AttentionShape& s, In q, In k, In v, Index n, Index h, Index at) {
  const auto from = attention_operands(s, q.floats(), k.floats(), v.floats());
  const Index row = s.operand_row(), key_row = s.key_row(), key_at = key_offset(s, at);
  return {{from.q + n * s.queries * row + at, row},
          {from.k + n * s.keys * key_row + key_at, key_row},
          {from.v + n * s.keys * key_row + key_at, key_row},
          params.scale,
          params.causal,
          params.causal_offset,
          params.key_lengths == nullptr ? s.keys : std::min(s.keys, params.key_lengths[n]),
          s.width,
          params.mask == nullptr ? nullptr : params.mask + n * params.mask_strides[0] + h * params.mask_strides[1],
          params.mask_strides[2]};
}

void attention(const AttentionParams& params, In q, In k, In v, Out y, Out log_sums, Stream&) {
  const AttentionShape s = attention_shape(q, k);
  for_each_head(s, [&](Index n, Index h, Index at) {
    const Head head = head_of(params, s, q, k, v, n, h, at);
    for (Index t = 0; t < s.queries; ++t) {
      std::vector<double> scores = head.scores(t);
      double largest = -std::numeric_limits<double>::infinity(), sum = 0;
      for (const double score : scores) largest = std::max(largest, score);
      const bool hides_all = params.mask != nullptr && largest == -std::numeric_limits<double>::infinity();
      for (double& score : scores) sum += score = std::exp(score - (hides_all ? 0 : largest));
      const bool sees_no_key = scores.empty() || sum == 0;
      for (Index d = 0; d < s.width; ++d) {
        double total = 0;
        for (std::size_t key = 0; key < scores.size(); ++key) total += scores[key] * head.v[static_cast<Index>(key)][d];
        y.floats()[(n * s.queries + t) * s.row() + at + d] = static_cast<float>(sees_no_key ? 0 : total / sum);
      }
      log_sums.floats()[(n * s.heads + h) * s.queries + t] =
          sees_no_key ? 0 : static_cast<float>(largest + std::log(sum));
    }
  });
}

// The sums of one head's gradients.
struct HeadGradients {
  std::vector<double> q, k, v;
  HeadGradients(Index queries, Index keys, Index width) : q(queries * width), k(keys * width), v(keys * width) {}
};

void add_row(std::vector<double>& sums, Index row, double factor, const float* from, Index width) {
  for (Index d = 0; d < width; ++d) sums[static_cast<std::size_t>(row * width + d)] += factor * from[d];
}

void store_rows(const std::vector<double>& sums, Index rows, Index width, float* to, Index stride, bool accumulate) {
  for (Index row = 0; row < rows && to != nullptr; ++row)
    for (Index d = 0; d < width; ++d)
      store(to[row * stride + d], sums[static_cast<std::size_t>(row * width + d)], accumulate);
}

HeadGradients gradients_of(const Head& head, Index queries, Index all_keys, const HeadRows& y, const HeadRows& y_grad,
                           const float* log_sums) {
  HeadGradients sums(queries, all_keys, head.width);
  for (Index t = 0; t < queries; ++t) {
    const std::vector<double> scores = head.scores(t);
    const double delta = dot(y_grad[t], y[t], head.width);
    for (Index key = 0; key < head.visible(t); ++key) {
      const double p = std::exp(scores[static_cast<std::size_t>(key)] - log_sums[t]);
      const double score_grad = p * (dot(y_grad[t], head.v[key], head.width) - delta) * head.scale;
      add_row(sums.v, key, p, y_grad[t], head.width);
      add_row(sums.q, t, score_grad, head.k[key], head.width);
      add_row(sums.k, key, score_grad, head.q[t], head.width);
    }
  }
  return sums;
}

void attention_backward(const AttentionParams& params, In q, In k, In v, In y, In log_sums, In y_grad, Out q_grad,
                        Out k_grad, Out v_grad, Stream&) {
  const AttentionShape s = attention_shape(q, k);
  const auto to = attention_operands(s, q_grad.floats(), k_grad.floats(), v_grad.floats());
  const bool accumulate_k = (s.packed ? q_grad : k_grad).accumulate,
             accumulate_v = (s.packed ? q_grad : v_grad).accumulate;
  const Index row = s.operand_row(), key_row = s.key_row();
  const auto at_head = [&](float* first, Index n, Index length, Index stride, Index at) {
    return first == nullptr ? nullptr : first + n * length * stride + at;
  };
  for_each_head(s, [&](Index n, Index h, Index at) {
    const Index first = n * s.queries * s.row() + at;
    const HeadGradients sums =
        gradients_of(head_of(params, s, q, k, v, n, h, at), s.queries, s.keys, {y.floats() + first, s.row()},
                     {y_grad.floats() + first, s.row()}, log_sums.floats() + (n * s.heads + h) * s.queries);
    const Index key_at = key_offset(s, at);
    const bool adds = h % s.group() != 0;  // to those of an earlier head of the group
    store_rows(sums.q, s.queries, s.width, at_head(to.q, n, s.queries, row, at), row, q_grad.accumulate);
    store_rows(sums.k, s.keys, s.width, at_head(to.k, n, s.keys, key_row, key_at), key_row, adds || accumulate_k);
    store_rows(sums.v, s.keys, s.width, at_head(to.v, n, s.keys, key_row, key_at), key_row, adds || accumulate_v);
  });
}

}  // namespace

void use_attention(KernelTable& table) {
  table.attention = any_float<attention>;
  table.attention_backward = any_float<attention_backward>;
}

}  // namespace lockstep::reference

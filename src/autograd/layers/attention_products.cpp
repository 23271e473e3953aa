#include "src/autograd/layers/attention_products.h"

#include <limits>

#include "lockstep/autograd/dropout.h"
#include "lockstep/autograd/matmul.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/softmax.h"
#include "src/autograd/layers/length_mask.h"

namespace lockstep {

namespace {

// Replaces hidden scores. Finite, so that a row of hidden scores alone has a softmax.
constexpr float kHiddenScore = -1e30F;

// (N, L, K, D) to (N, K, L, D).
Tensor heads_first(const Tensor& x) { return permute(x, {0, 2, 1, 3}); }

// The keys that the causal mask leaves visible, (1, 1, T, S) uint8.
Tensor causal_keys(const Shape& scores, const AttentionOptions& options, Device& device) {
  const std::int64_t queries = scores[2], keys = scores[3];
  const std::int64_t offset =
      options.causal_alignment == CausalAlignment::kLowerRight ? keys - queries : std::int64_t{0};
  std::vector<std::uint8_t> visible;
  visible.reserve(static_cast<std::size_t>(queries * keys));
  for (std::int64_t t = 0; t < queries; ++t)
    for (std::int64_t s = 0; s < keys; ++s) visible.push_back(s <= t + offset);
  return Tensor::from(std::span<const std::uint8_t>(visible), {1, 1, queries, keys}, device);
}

// Scores, and then probabilities, of which masks hide some.
class MaskedScores {
 public:
  MaskedScores(const Tensor& scores, const AttentionOptions& options) : scores_(scores) {
    const Shape& shape = scores.shape();
    if (options.causal) hide(causal_keys(shape, options, scores.device()));
    if (!options.key_lengths.empty())
      hide(reshape(length_mask(options.key_lengths, shape[3], scores.device()), {shape[0], 1, 1, shape[3]}));
    if (!options.mask.defined()) return;
    if (options.mask.dtype() == DType::kUInt8 || options.mask.dtype() == DType::kInt8) {
      hide(options.mask);
    } else {
      const Tensor mask = cast(options.mask, DType::kFloat32);
      const Tensor visible = ne(mask, -std::numeric_limits<float>::infinity());  // NaN is not hidden
      scores_ = add(scores_, where(visible, mask, constant(0)));
      hide(visible);
    }
  }

  // 0 where a key is hidden, also in a row without any visible key.
  Tensor probabilities() const {
    Tensor p = softmax(scores_);
    for (const Tensor& visible : masks_) p = where(visible, p, constant(0));
    return p;
  }

 private:
  Tensor constant(float value) const { return Tensor::full({1}, value, scores_.device()); }
  void hide(const Tensor& visible) {
    scores_ = where(visible, scores_, constant(kHiddenScore));
    masks_.push_back(visible);
  }

  Tensor scores_;
  std::vector<Tensor> masks_;
};

// Rows behind a sample's key length are 0: 0 times infinity or NaN would not be 0.
Tensor without_padding(const Tensor& x, const AttentionOptions& options) {
  if (options.key_lengths.empty()) return x;
  const Tensor is_key = length_mask(options.key_lengths, x.shape()[1], x.device());
  return where(reshape(is_key, {x.shape()[0], x.shape()[1], 1, 1}), x,
               cast(Tensor::full({1}, 0, x.device()), x.dtype()));
}

}  // namespace

Tensor attention_by_products(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
                             float scale_of_scores) {
  const std::int64_t batch = q.shape()[0], queries = q.shape()[1], heads = q.shape()[2], width = q.shape()[3];
  const std::int64_t keys = k.shape()[1], key_heads = k.shape()[2], rows = heads / key_heads * queries;
  const auto widened = [](const Tensor& x) { return heads_first(cast(x, DType::kFloat32)); };
  const Tensor known_keys = without_padding(k, options), known_values = without_padding(v, options);
  // The queries of all heads that read the same keys are the rows of one product.
  const Tensor all_queries = reshape(scale(widened(q), scale_of_scores), {batch * key_heads, rows, width});
  const Tensor all_keys = reshape(widened(known_keys), {batch * key_heads, keys, width});
  const Tensor scores = reshape(cast(matmul(all_queries, all_keys, {.transpose_b = true}), DType::kFloat32),
                                {batch, heads, queries, keys});
  const Tensor p = dropout(MaskedScores(scores, options).probabilities(), options.dropout);
  const Tensor y = matmul(reshape(p, {batch * key_heads, rows, keys}),
                          reshape(widened(known_values), {batch * key_heads, keys, width}));
  return cast(heads_first(reshape(y, {batch, heads, queries, width})), q.dtype());
}

}  // namespace lockstep

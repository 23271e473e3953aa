#include "lockstep/nn/attention.h"

#include <fmt/format.h>

#include "lockstep/autograd/dropout.h"
#include "lockstep/autograd/extend.h"
#include "lockstep/nn/init.h"
#include "src/nn/layers/layer_parts.h"

namespace lockstep::nn {

MultiheadAttention::MultiheadAttention(std::int64_t width, std::int64_t heads, const MultiheadAttentionOptions& options)
    : out_proj(width, width, {.bias = options.bias}), heads_(heads), options_(options) {
  check_sizes("MultiheadAttention", {width, heads});
  if (width % heads != 0)
    throw InvalidArgument("MultiheadAttention: {} heads do not divide a width of {}", heads, width);
  for (const float p : {options.dropout, options.probability_dropout})
    if (!(p >= 0 && p < 1)) throw InvalidArgument("MultiheadAttention: dropout must be in [0, 1), got {}", p);
  in_proj_weight = Tensor::empty({3 * width, width});
  init::xavier_uniform(in_proj_weight);
  add_parameter("in_proj_weight", in_proj_weight);
  if (options.bias) {
    in_proj_bias = Tensor::zeros({3 * width});
    add_parameter("in_proj_bias", in_proj_bias);
    out_proj.bias.fill(0);
  }
  add("out_proj", out_proj);
}

AttentionOptions MultiheadAttention::options_with(const AttentionMasks& masks) const {
  return {.causal = options_.causal || masks.causal,
          .key_lengths = masks.key_lengths,
          .mask = masks.mask,
          .dropout = is_training() ? options_.probability_dropout : 0};
}

// The parts of q, k and v: (N, T, parts, heads, C / heads).
Tensor MultiheadAttention::projected(const Tensor& x, std::int64_t first_part, std::int64_t parts) const {
  const std::int64_t width = in_proj_weight.shape()[1];
  const Range rows{first_part * width, (first_part + parts) * width};
  const bool is_whole = parts == 3;
  const Tensor y = linear(x, is_whole ? in_proj_weight : slice(in_proj_weight, 0, rows),
                          is_whole || !in_proj_bias.defined() ? in_proj_bias : slice(in_proj_bias, 0, rows));
  return reshape(y, {x.shape()[0], x.shape()[1], parts, heads_, width / heads_});
}

// heads (N, T, heads, C / heads) to (N, T, C).
Tensor MultiheadAttention::combined(const Tensor& heads) {
  const Tensor joined = reshape(heads, {heads.shape()[0], heads.shape()[1], in_proj_weight.shape()[1]});
  return dropout(out_proj(joined), options_.dropout, is_training());
}

Tensor MultiheadAttention::attend(const Tensor& x, const AttentionMasks& masks) {
  check_activation("MultiheadAttention", "x (N, T, C)", x, 3);
  return combined(scaled_dot_product_attention(projected(x, 0, 3), options_with(masks)));
}

Tensor MultiheadAttention::attend(const Tensor& x, const Tensor& keys, const Tensor& values,
                                  const AttentionMasks& masks) {
  check_activation("MultiheadAttention", "x (N, T, C)", x, 3);
  check_activation("MultiheadAttention", "keys (N, S, C)", keys, 3, &x.device());
  check_activation("MultiheadAttention", "values (N, S, C)", values, 3, &x.device());
  if (keys.shape() != values.shape() || keys.shape()[0] != x.shape()[0])
    throw InvalidArgument("MultiheadAttention: keys {} and values {} must have equal shapes, and x's {} samples",
                          keys.shape().text(), values.shape().text(), x.shape()[0]);
  const auto part = [](const Tensor& all, std::int64_t which) { return squeeze(slice(all, 2, {which, which + 1}), 2); };
  const Tensor q = squeeze(projected(x, 0, 1), 2);
  if (keys.is_same(values)) {
    const Tensor both = projected(keys, 1, 2);
    return combined(scaled_dot_product_attention(q, part(both, 0), part(both, 1), options_with(masks)));
  }
  return combined(scaled_dot_product_attention(q, squeeze(projected(keys, 1, 1), 2),
                                               squeeze(projected(values, 2, 1), 2), options_with(masks)));
}

std::string MultiheadAttention::extra_repr() const {
  const auto text = [](const char* name, float p) { return p > 0 ? fmt::format(", {}={}", name, p) : ""; };
  return fmt::format("{}, heads={}{}{}{}{}", in_proj_weight.shape()[1], heads_, options_.causal ? ", causal" : "",
                     text("dropout", options_.dropout), text("probability_dropout", options_.probability_dropout),
                     options_.bias ? "" : ", bias=false");
}

}  // namespace lockstep::nn

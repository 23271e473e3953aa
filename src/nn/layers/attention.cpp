#include "lockstep/nn/attention.h"

#include <fmt/format.h>

#include "lockstep/autograd/extend.h"
#include "lockstep/nn/init.h"
#include "src/nn/layers/layer_parts.h"

namespace lockstep::nn {

MultiheadAttention::MultiheadAttention(std::int64_t width, std::int64_t heads, const MultiheadAttentionOptions& options)
    : out_proj(width, width, {.bias = options.bias}), heads_(heads), options_(options) {
  check_sizes("MultiheadAttention", {width, heads});
  if (width % heads != 0)
    throw InvalidArgument("MultiheadAttention: {} heads do not divide a width of {}", heads, width);
  if (!(options.dropout >= 0 && options.dropout < 1))
    throw InvalidArgument("MultiheadAttention: dropout must be in [0, 1), got {}", options.dropout);
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

Tensor MultiheadAttention::forward(const Tensor& x) {
  check_activation("MultiheadAttention", "x (N, T, C)", x, 3);
  const Tensor qkv = linear(x, in_proj_weight, in_proj_bias);
  const std::int64_t batch = x.shape()[0], length = x.shape()[1], width = x.shape()[2];
  const Tensor y = scaled_dot_product_attention(reshape(qkv, {batch, length, 3, heads_, width / heads_}),
                                                {.causal = options_.causal});
  return dropout(out_proj(reshape(y, {batch, length, width})), options_.dropout, is_training());
}

std::string MultiheadAttention::extra_repr() const {
  return fmt::format("{}, heads={}{}{}{}", in_proj_weight.shape()[1], heads_, options_.causal ? ", causal" : "",
                     options_.dropout > 0 ? fmt::format(", dropout={}", options_.dropout) : "",
                     options_.bias ? "" : ", bias=false");
}

}  // namespace lockstep::nn

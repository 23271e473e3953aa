#include "lockstep/models/gpt2.h"

#include <cmath>

#include "lockstep/nn/init.h"
#include "src/models/model_parts.h"

namespace lockstep::models {

Gpt2Config Gpt2Config::read(const std::string& file_or_folder) {
  const ConfigFile file(file_or_folder, {"gpt2"});
  file.require("scale_attn_weights", true);
  file.require("scale_attn_by_inverse_layer_idx", false);
  file.require("reorder_and_upcast_attn", false);
  file.require("add_cross_attention", false);
  file.require("tie_word_embeddings", true);
  Gpt2Config config;
  config.vocabulary = file.size("vocab_size");
  config.positions = file.size("n_positions");
  config.width = file.size("n_embd");
  config.layers = file.layers("n_layer");
  config.heads = file.size("n_head");
  config.inner = file.size("n_inner", 0);
  config.eps = file.positive("layer_norm_epsilon", 1e-5F);
  config.embedding_dropout = file.probability("embd_pdrop", 0.1F);
  config.attention_dropout = file.probability("attn_pdrop", 0.1F);
  config.dropout = file.probability("resid_pdrop", 0.1F);
  const std::string activation = file.text("activation_function", "gelu_new");
  if (activation != "gelu_new" && activation != "gelu")
    file.refuse("activation_function", activation, "gelu_new or gelu");
  config.gelu = activation == "gelu" ? GeluApproximation::kNone : GeluApproximation::kTanh;
  return config;
}

std::string Gpt2Config::json() const {
  const nlohmann::ordered_json values = {
      {"model_type", "gpt2"},
      {"architectures", {"GPT2LMHeadModel"}},
      {"vocab_size", vocabulary},
      {"n_positions", positions},
      {"n_embd", width},
      {"n_layer", layers},
      {"n_head", heads},
      {"n_inner", inner == 0 ? nlohmann::json() : nlohmann::json(inner)},
      {"layer_norm_epsilon", eps},
      {"activation_function", gelu == GeluApproximation::kTanh ? "gelu_new" : "gelu"},
      {"embd_pdrop", embedding_dropout},
      {"attn_pdrop", attention_dropout},
      {"resid_pdrop", dropout},
      {"tie_word_embeddings", true}};
  return values.dump(2) + "\n";
}

Gpt2Attention::Gpt2Attention(const Gpt2Config& config)
    : c_attn(config.width, 3 * config.width),
      c_proj(config.width, config.width),
      heads_(config.heads),
      attention_dropout_(config.attention_dropout),
      dropout_(config.dropout) {
  check_heads("Gpt2", config.width, config.heads);
  add("c_attn", c_attn), add("c_proj", c_proj), add("resid_dropout", dropout_);
}

Tensor Gpt2Attention::forward(const Tensor& x) {
  const std::int64_t batch = x.shape()[0], length = x.shape()[1], width = x.shape()[2];
  const Tensor qkv = reshape(c_attn(x), {batch, length, 3, heads_, width / heads_});
  const float p = is_training() ? attention_dropout_ : 0;
  return dropout_(c_proj(join_heads(scaled_dot_product_attention(qkv, {.causal = true, .dropout = p}))));
}

Gpt2Mlp::Gpt2Mlp(const Gpt2Config& config)
    : c_fc(config.width, config.inner == 0 ? 4 * config.width : config.inner),
      c_proj(config.inner == 0 ? 4 * config.width : config.inner, config.width),
      gelu_(config.gelu),
      dropout_(config.dropout) {
  add("c_fc", c_fc), add("c_proj", c_proj), add("dropout", dropout_);
}

// The fused form has no place for low-rank matrices.
Tensor Gpt2Mlp::forward(const Tensor& x) {
  const bool is_plain = c_fc.low_rank() == nullptr && c_proj.low_rank() == nullptr;
  return dropout_(is_plain ? feed_forward(x, {c_fc.weight, c_fc.bias, c_proj.weight, c_proj.bias}, gelu_)
                           : c_proj(gelu(c_fc(x), gelu_)));
}

Gpt2Block::Gpt2Block(const Gpt2Config& config)
    : ln_1(config.width, {.eps = config.eps}), ln_2(config.width, {.eps = config.eps}), attn(config), mlp(config) {
  add("ln_1", ln_1), add("attn", attn), add("ln_2", ln_2), add("mlp", mlp);
}

Tensor Gpt2Block::forward(const Tensor& x) {
  const auto [sum, normal] = ln_2.of_sum(x, attn(ln_1(x)));
  return sum + mlp(normal);
}

Gpt2::Gpt2(const Gpt2Config& config)
    : wte(config.vocabulary, config.width),
      wpe(config.positions, config.width),
      ln_f(config.width, {.eps = config.eps}),
      config_(config),
      dropout_(config.embedding_dropout) {
  for (std::int64_t i = 0; i < config.layers; ++i) h.append(config);
  add("wte", wte), add("wpe", wpe), add("drop", dropout_), add("h", h), add("ln_f", ln_f);
  for (const NamedTensor& parameter : named_parameters()) {
    if (parameter.tensor.shape().dims() < 2) continue;
    const bool is_projection = parameter.name.ends_with("c_proj.weight");
    const float deviation = is_projection ? 0.02F / std::sqrt(2 * static_cast<float>(config.layers)) : 0.02F;
    nn::init::normal(parameter.tensor, 0, deviation);
  }
  for (Gpt2Block& block : h)
    for (nn::Linear* const layer : {&block.attn.c_attn, &block.attn.c_proj, &block.mlp.c_fc, &block.mlp.c_proj})
      layer->bias.fill(0);
}

Tensor Gpt2::hidden(const Tensor& ids) {
  check_ids("Gpt2", ids, config_.positions);
  Tensor x = dropout_(wte(ids) + slice(wpe.weight, 0, {.stop = ids.shape()[1]}));
  for (Gpt2Block& block : h) x = block(x);
  return ln_f(x);
}

Tensor Gpt2::forward(const Tensor& ids) { return linear(hidden(ids), wte.weight, {}); }

}  // namespace lockstep::models

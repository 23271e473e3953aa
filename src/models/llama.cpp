#include "lockstep/models/llama.h"

#include <cmath>
#include <numbers>

#include "lockstep/autograd/extend.h"
#include "lockstep/nn/init.h"
#include "src/models/model_parts.h"

namespace lockstep::models {

namespace {

std::int64_t head_width_of(const LlamaConfig& config) {
  if (config.head_width != 0 || config.heads < 1) return config.head_width;
  return config.width / config.heads;
}
std::int64_t key_heads_of(const LlamaConfig& config) {
  return config.key_value_heads != 0 ? config.key_value_heads : config.heads;
}

// Checks what the sizes of layers are computed from, before the first layer is made.
const LlamaConfig& checked(const LlamaConfig& config) {
  if (config.heads < 1 || config.key_value_heads < 0)
    throw InvalidArgument("Llama: expected heads of at least 1 and key_value_heads of at least 0, got {} and {}",
                          config.heads, config.key_value_heads);
  const std::int64_t head_width = head_width_of(config), key_heads = key_heads_of(config);
  if (head_width < 2 || head_width % 2 != 0 || config.heads % key_heads != 0)
    throw InvalidArgument(
        "Llama: expected an even head width and key heads that divide the {} heads, got width {} and {} key heads",
        config.heads, head_width, key_heads);
  if (config.family == "qwen2" && !config.attention_bias)
    throw InvalidArgument("Llama: models of the family qwen2 have biases: set attention_bias");
  return config;
}

// rope_theta and rope_scaling of transformers before version 5, which writes both into rope_parameters.
void read_rope(const ConfigFile& file, LlamaConfig& config) {
  const nlohmann::json *const parameters = file.object("rope_parameters"), *const older = file.object("rope_scaling");
  config.rope_theta = file.positive("rope_theta", 10000);
  const nlohmann::json* const rope = parameters != nullptr ? parameters : older;
  if (rope == nullptr) return;
  const auto number = [&](const char* key, float otherwise) {
    const auto found = rope->find(key);
    if (found == rope->end() || found->is_null()) return otherwise;
    const float value = found->is_number() ? found->get<float>() : -1.0F;
    if (!(value > 0 && std::isfinite(value)))
      file.refuse(std::string("rope_parameters.") + key, *found, "a positive number");
    return value;
  };
  config.rope_theta = number("rope_theta", config.rope_theta);
  const auto type_at = rope->contains("rope_type") ? rope->find("rope_type") : rope->find("type");
  const nlohmann::json type = type_at == rope->end() ? nlohmann::json("default") : *type_at;
  if (type == "default") return;
  if (type != "llama3") file.refuse("rope_type", type, "\"default\" or \"llama3\"");
  config.rope_scaling = {
      number("factor", 1), number("low_freq_factor", 1), number("high_freq_factor", 4),
      static_cast<std::int64_t>(std::min(number("original_max_position_embeddings", 8192), 0x1p24F))};
  if (config.rope_scaling.low_freq_factor >= config.rope_scaling.high_freq_factor)
    file.refuse("rope_parameters.low_freq_factor", config.rope_scaling.low_freq_factor, "less than high_freq_factor");
}

// Long wave lengths are stretched by `factor`, short ones stay, and those between are interpolated.
float scaled_frequency(float frequency, const RopeScaling& scaling) {
  if (scaling.factor == 1) return frequency;
  const float wave = 2 * std::numbers::pi_v<float> / frequency;
  const auto original = static_cast<float>(scaling.original_positions);
  if (wave < original / scaling.high_freq_factor) return frequency;
  if (wave > original / scaling.low_freq_factor) return frequency / scaling.factor;
  const float smooth =
      (original / wave - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

// Rotates each pair (x_i, x_(i + D / 2)) of x (N, T, H, D) by the angle of its position and frequency (Su et al. 2021,
// equation 34, in the order that Llama's files have).
Tensor rotate(const Tensor& x, const Tensor& cosines, const Tensor& sines) {
  const std::vector<Tensor> halves = split(x, x.shape()[3] / 2, 3);
  return concat({halves[0] * cosines - halves[1] * sines, halves[1] * cosines + halves[0] * sines}, 3);
}

}  // namespace

LlamaConfig LlamaConfig::read(const std::string& file_or_folder) {
  const ConfigFile file(file_or_folder, {"llama", "qwen2", "qwen3"});
  file.require("hidden_act", "silu");
  file.require("mlp_bias", false);
  file.require("use_sliding_window", false);
  LlamaConfig config;
  config.family = file.text("model_type", "llama");
  config.vocabulary = file.size("vocab_size");
  config.positions = file.size("max_position_embeddings", 2048);
  config.width = file.size("hidden_size");
  config.inner = file.size("intermediate_size");
  config.layers = file.layers("num_hidden_layers");
  config.heads = file.size("num_attention_heads");
  config.key_value_heads = file.size("num_key_value_heads", 0);
  config.head_width = file.size("head_dim", config.family == "qwen3" ? 128 : 0);
  if (const std::int64_t most = ((std::int64_t{1} << 30) - 1) / config.heads; config.head_width > most)
    file.refuse("head_dim", config.head_width, fmt::format("at most {} for {} heads", most, config.heads));
  config.eps = file.positive("rms_norm_eps", 1e-6F);
  config.attention_bias = file.flag("attention_bias", config.family == "qwen2");
  config.tied_embeddings = file.flag("tie_word_embeddings", false);
  read_rope(file, config);
  return config;
}

std::string LlamaConfig::json() const {
  nlohmann::ordered_json rope = {{"rope_theta", rope_theta},
                                 {"rope_type", rope_scaling.factor == 1 ? "default" : "llama3"}};
  if (rope_scaling.factor != 1) {
    rope["factor"] = rope_scaling.factor;
    rope["low_freq_factor"] = rope_scaling.low_freq_factor;
    rope["high_freq_factor"] = rope_scaling.high_freq_factor;
    rope["original_max_position_embeddings"] = rope_scaling.original_positions;
  }
  const char* const architecture = family == "qwen2"   ? "Qwen2ForCausalLM"
                                   : family == "qwen3" ? "Qwen3ForCausalLM"
                                                       : "LlamaForCausalLM";
  nlohmann::ordered_json values = {{"model_type", family},
                                   {"architectures", {architecture}},
                                   {"vocab_size", vocabulary},
                                   {"max_position_embeddings", positions},
                                   {"hidden_size", width},
                                   {"intermediate_size", inner},
                                   {"num_hidden_layers", layers},
                                   {"num_attention_heads", heads},
                                   {"num_key_value_heads", key_heads_of(*this)},
                                   {"head_dim", head_width_of(*this)},
                                   {"hidden_act", "silu"},
                                   {"rms_norm_eps", eps},
                                   {"rope_theta", rope_theta},
                                   {"rope_parameters", rope},
                                   {"tie_word_embeddings", tied_embeddings}};
  if (family != "qwen2") values["attention_bias"] = attention_bias;
  return values.dump(2) + "\n";
}

LlamaAttention::LlamaAttention(const LlamaConfig& config)
    : q_proj(config.width, checked(config).heads * head_width_of(config), {.bias = config.attention_bias}),
      k_proj(config.width, key_heads_of(config) * head_width_of(config), {.bias = config.attention_bias}),
      v_proj(config.width, key_heads_of(config) * head_width_of(config), {.bias = config.attention_bias}),
      o_proj(config.heads * head_width_of(config), config.width,
             {.bias = config.attention_bias && config.family != "qwen2"}),
      heads_(config.heads),
      key_heads_(key_heads_of(config)),
      head_width_(head_width_of(config)) {
  add("q_proj", q_proj), add("k_proj", k_proj), add("v_proj", v_proj), add("o_proj", o_proj);
  if (config.family != "qwen3") return;
  q_norm = std::make_unique<nn::RMSNorm>(head_width_, config.eps);
  k_norm = std::make_unique<nn::RMSNorm>(head_width_, config.eps);
  add("q_norm", *q_norm), add("k_norm", *k_norm);
}

Tensor LlamaAttention::run(const Tensor& x, const Tensor& cosines, const Tensor& sines, KeyValueCache::Layer* cache) {
  Tensor q = split_heads(q_proj(x), heads_), k = split_heads(k_proj(x), key_heads_);
  Tensor v = split_heads(v_proj(x), key_heads_);
  if (q_norm) q = (*q_norm)(q), k = (*k_norm)(k);
  q = rotate(q, cosines, sines), k = rotate(k, cosines, sines);
  if (cache != nullptr) {
    if (cache->keys.defined()) k = concat({cache->keys, k}, 1), v = concat({cache->values, v}, 1);
    *cache = {k, v};
  }
  return o_proj(join_heads(
      scaled_dot_product_attention(q, k, v, {.causal = true, .causal_alignment = CausalAlignment::kLowerRight})));
}

LlamaMlp::LlamaMlp(const LlamaConfig& config)
    : gate_proj(config.width, config.inner, {.bias = false}),
      up_proj(config.width, config.inner, {.bias = false}),
      down_proj(config.inner, config.width, {.bias = false}) {
  add("gate_proj", gate_proj), add("up_proj", up_proj), add("down_proj", down_proj);
}

Tensor LlamaMlp::forward(const Tensor& x) { return down_proj(silu(gate_proj(x)) * up_proj(x)); }

LlamaLayer::LlamaLayer(const LlamaConfig& config)
    : self_attn(config),
      mlp(config),
      input_layernorm(config.width, config.eps),
      post_attention_layernorm(config.width, config.eps) {
  add("self_attn", self_attn), add("mlp", mlp);
  add("input_layernorm", input_layernorm), add("post_attention_layernorm", post_attention_layernorm);
}

Tensor LlamaLayer::run(const Tensor& x, const Tensor& cosines, const Tensor& sines, KeyValueCache::Layer* cache) {
  const Tensor y = x + self_attn.run(input_layernorm(x), cosines, sines, cache);
  return y + mlp(post_attention_layernorm(y));
}

Llama::Llama(const LlamaConfig& config)
    : embed_tokens(checked(config).vocabulary, config.width), norm(config.width, config.eps), config_(config) {
  const std::int64_t head_width = head_width_of(config);
  for (std::int64_t i = 0; i < config.layers; ++i) layers.append(config);
  model_.add("embed_tokens", embed_tokens), model_.add("layers", layers), model_.add("norm", norm);
  add("model", model_);
  if (!config.tied_embeddings) {
    lm_head = std::make_unique<nn::Linear>(config.width, config.vocabulary, nn::LinearLayerOptions{.bias = false});
    add("lm_head", *lm_head);
  }
  for (const NamedTensor& parameter : named_parameters())
    if (parameter.tensor.shape().dims() > 1)
      nn::init::normal(parameter.tensor, 0, 0.02F);
    else if (parameter.name.ends_with("bias"))
      parameter.tensor.fill(0);
  for (std::int64_t i = 0; i < head_width; i += 2)
    frequencies_.push_back(scaled_frequency(
        std::pow(config.rope_theta, -static_cast<float>(i) / static_cast<float>(head_width)), config.rope_scaling));
}

KeyValueCache Llama::make_cache() const {
  KeyValueCache cache;
  cache.layers.resize(layers.size());
  return cache;
}

Tensor Llama::hidden(const Tensor& ids, KeyValueCache* cache) {
  const std::int64_t first = cache == nullptr ? 0 : cache->length, length = ids.defined() ? ids.shape()[1] : 0;
  const auto pairs = static_cast<std::int64_t>(frequencies_.size());
  std::vector<float> cosines, sines;
  for (std::int64_t position = first; position < first + length; ++position)
    for (const float frequency : frequencies_) {
      cosines.push_back(std::cos(static_cast<float>(position) * frequency));
      sines.push_back(std::sin(static_cast<float>(position) * frequency));
    }
  const Shape shape{length, 1, pairs};
  const Tensor cos = Tensor::from(std::span<const float>(cosines), shape, ids.device()),
               sin = Tensor::from(std::span<const float>(sines), shape, ids.device());
  Tensor x = embed_tokens(ids);
  for (std::size_t i = 0; i < layers.size(); ++i)
    x = layers[i].run(x, cos, sin, cache == nullptr ? nullptr : &cache->layers[i]);
  if (cache != nullptr) cache->length += length;
  return x;
}

Tensor Llama::logits(const Tensor& x) {
  return lm_head ? (*lm_head)(norm(x)) : linear(norm(x), embed_tokens.weight, {});
}

Tensor Llama::forward(const Tensor& ids) {
  check_ids("Llama", ids, config_.positions);
  return logits(hidden(ids, nullptr));
}

Tensor Llama::next(const Tensor& ids, KeyValueCache& cache) {
  check_ids("Llama::next", ids, config_.positions, cache.length);
  if (cache.layers.size() != layers.size())
    throw InvalidArgument("Llama::next: got a cache of {} layers, expected {}: use make_cache()", cache.layers.size(),
                          layers.size());
  if (cache.length > 0 && cache.layers.front().keys.shape()[0] != ids.shape()[0])
    throw InvalidArgument("Llama::next: the cache has {} samples, ids {} have {}", cache.layers.front().keys.shape()[0],
                          ids.shape().text(), ids.shape()[0]);
  if (ids.shape()[1] == 0) throw InvalidArgument("Llama::next: ids {} have no positions", ids.shape().text());
  const Tensor x = hidden(ids, &cache);
  return logits(slice(x, 1, {.start = x.shape()[1] - 1}));
}

}  // namespace lockstep::models

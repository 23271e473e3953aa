#include "lockstep/models/bert.h"

#include "lockstep/autograd/extend.h"
#include "lockstep/nn/init.h"
#include "src/autograd/layers/length_mask.h"
#include "src/models/model_parts.h"

namespace lockstep::models {

namespace {

Activation activation_of(const ConfigFile& file) {
  const std::string name = file.text("hidden_act", "gelu");
  if (name == "gelu") return Activation::kGELU;
  if (name == "relu") return Activation::kReLU;
  if (name == "silu" || name == "swish") return Activation::kSiLU;
  file.refuse("hidden_act", name, "gelu, relu or silu");
}

void check_lengths(const char* function, const std::vector<std::int64_t>& lengths, const Shape& shape) {
  if (lengths.empty()) return;
  if (static_cast<std::int64_t>(lengths.size()) != shape[0])
    throw InvalidArgument("{}: expected one length for each of {} samples, got {}", function, shape[0], lengths.size());
  for (const std::int64_t length : lengths)
    if (length < 0 || length > shape[1])
      throw InvalidArgument("{}: lengths must be in [0, {}], the number of positions, got {}", function, shape[1],
                            length);
}

}  // namespace

BertConfig BertConfig::read(const std::string& file_or_folder) {
  const ConfigFile file(file_or_folder, {"bert"});
  file.require("position_embedding_type", "absolute");
  file.require("is_decoder", false);
  file.require("add_cross_attention", false);
  BertConfig config;
  config.vocabulary = file.size("vocab_size");
  config.positions = file.size("max_position_embeddings");
  config.types = file.size("type_vocab_size", 2);
  config.width = file.size("hidden_size");
  config.layers = file.layers("num_hidden_layers");
  config.heads = file.size("num_attention_heads");
  config.inner = file.size("intermediate_size");
  config.eps = file.positive("layer_norm_eps", 1e-12F);
  config.activation = activation_of(file);
  config.dropout = file.probability("hidden_dropout_prob", 0.1F);
  config.attention_dropout = file.probability("attention_probs_dropout_prob", 0.1F);
  config.pooler = file.flag("lockstep_pooler", true);
  return config;
}

std::string BertConfig::json() const {
  const nlohmann::ordered_json values = {{"model_type", "bert"},
                                         {"architectures", {"BertModel"}},
                                         {"vocab_size", vocabulary},
                                         {"max_position_embeddings", positions},
                                         {"type_vocab_size", types},
                                         {"hidden_size", width},
                                         {"num_hidden_layers", layers},
                                         {"num_attention_heads", heads},
                                         {"intermediate_size", inner},
                                         {"layer_norm_eps", eps},
                                         {"hidden_act", name_of(activation)},
                                         {"hidden_dropout_prob", dropout},
                                         {"attention_probs_dropout_prob", attention_dropout},
                                         {"lockstep_pooler", pooler}};  // not in transformers' files
  return values.dump(2) + "\n";
}

BertEmbeddings::BertEmbeddings(const BertConfig& config)
    : word_embeddings(config.vocabulary, config.width),
      position_embeddings(config.positions, config.width),
      token_type_embeddings(config.types, config.width),
      norm(config.width, {.eps = config.eps}),
      dropout_(config.dropout) {
  add("word_embeddings", word_embeddings), add("position_embeddings", position_embeddings);
  add("token_type_embeddings", token_type_embeddings), add("LayerNorm", norm), add("dropout", dropout_);
}

Tensors BertEmbeddings::forward_all(const Tensors& ids_and_types) {
  check_inputs(ids_and_types, ids_and_types.size() == 2 ? 2 : 1);
  const Tensor& ids = ids_and_types[0];
  const Tensor words = word_embeddings(ids);
  const Tensor types = ids_and_types.size() == 2 ? token_type_embeddings(ids_and_types[1])
                                                 : slice(token_type_embeddings.weight, 0, {.stop = 1});
  const Tensor positions = slice(position_embeddings.weight, 0, {.stop = ids.shape()[1]});
  return {dropout_(norm(words + types + positions))};
}

BertLayer::BertLayer(const BertConfig& config)
    : query(config.width, config.width),
      key(config.width, config.width),
      value(config.width, config.width),
      attention_output(config.width, config.width),
      attention_norm(config.width, {.eps = config.eps}),
      intermediate(config.width, config.inner, {.activation = config.activation}),
      output(config.inner, config.width),
      output_norm(config.width, {.eps = config.eps}),
      heads_(config.heads),
      attention_dropout_(config.attention_dropout),
      dropout_(config.dropout) {
  check_heads("Bert", config.width, config.heads);
  self_.add("query", query), self_.add("key", key), self_.add("value", value);
  attention_output_path_.add("dense", attention_output), attention_output_path_.add("LayerNorm", attention_norm);
  attention_.add("self", self_), attention_.add("output", attention_output_path_);
  intermediate_path_.add("dense", intermediate);
  output_path_.add("dense", output), output_path_.add("LayerNorm", output_norm);
  add("attention", attention_), add("intermediate", intermediate_path_), add("output", output_path_);
  add("dropout", dropout_);
}

Tensor BertLayer::run(const Tensor& x, const std::vector<std::int64_t>& lengths) {
  const AttentionOptions options{.key_lengths = lengths, .dropout = is_training() ? attention_dropout_ : 0};
  const auto heads = [&](nn::Linear& layer) { return split_heads(layer(x), heads_); };
  const Tensor attended = join_heads(scaled_dot_product_attention(heads(query), heads(key), heads(value), options));
  const Tensor normal = attention_norm(x + dropout_(attention_output(attended)));
  return output_norm(normal + dropout_(output(intermediate(normal))));
}

Bert::Bert(const BertConfig& config) : embeddings(config), config_(config) {
  for (std::int64_t i = 0; i < config.layers; ++i) layer.append(config);
  encoder_.add("layer", layer);
  add("embeddings", embeddings), add("encoder", encoder_);
  if (config.pooler) {
    pooler_ = std::make_unique<nn::Linear>(config.width, config.width,
                                           nn::LinearLayerOptions{.activation = Activation::kTanh});
    pooler_path_.add("dense", *pooler_);
    add("pooler", pooler_path_);
  }
  for (const NamedTensor& parameter : named_parameters())
    if (parameter.tensor.shape().dims() > 1)
      nn::init::normal(parameter.tensor, 0, 0.02F);
    else if (parameter.name.ends_with("bias"))
      parameter.tensor.fill(0);
}

Tensor Bert::encode(const Tensor& ids, const std::vector<std::int64_t>& lengths, const Tensor& types) {
  check_ids("Bert", ids, config_.positions);
  check_lengths("Bert", lengths, ids.shape());
  if (types.defined()) {
    check_input("Bert", "types (N, T)", types, 2, &ids.device(), DType::kInt64);
    if (types.shape() != ids.shape())
      throw InvalidArgument("Bert: expected types of the shape of ids, {}, got {}", ids.shape().text(),
                            types.shape().text());
  }
  Tensor x = types.defined() ? embeddings(ids, types) : embeddings(ids);
  for (BertLayer& each : layer) x = each.run(x, lengths);
  return x;
}

Tensor Bert::pool(const Tensor& hidden) {
  if (!pooler_) throw InvalidArgument("Bert::pool: this model has no pooler: its config has pooler = false");
  check_activation("Bert::pool", "hidden (N, T, C)", hidden, 3);
  return (*pooler_)(squeeze(slice(hidden, 1, {.stop = 1}), 1));
}

Tensor mean_pooling(const Tensor& hidden, const std::vector<std::int64_t>& lengths) {
  check_activation("mean_pooling", "hidden (N, T, C)", hidden, 3);
  const Shape& shape = hidden.shape();
  check_lengths("mean_pooling", lengths, shape);
  if (lengths.empty()) return mean(hidden, 1);
  const Tensor is_inside = reshape(length_mask(lengths, shape[1], hidden.device()), {shape[0], 1, shape[1]});
  const Tensor one = Tensor::full({1}, 1, hidden.device()), zero = Tensor::full({1}, 0, hidden.device());
  const Tensor inside = where(is_inside, one, zero), share = inside / clamp(sum(inside, 2, true), 1);
  return squeeze(matmul(share, cast(hidden, DType::kFloat32)), 1);
}

Tensor normalize(const Tensor& x) {
  check_activation("normalize", "x (N, C)", x, 2);
  return x / clamp(norm(x, 2, -1, true), 1e-12F);
}

}  // namespace lockstep::models

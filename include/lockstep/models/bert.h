// BERT (Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers", section 3), with the names and the
// computation of transformers' BertModel, and the pooling of sentence encoders.
//
//   models::Bert net(models::BertConfig::read("minilm"));
//   models::load_pretrained(net, "minilm", {.names = models::bert_names()});
//   Tensor sentences = models::mean_pooling(net.encode(ids, lengths), lengths);   // (N, width)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/nn/containers.h"
#include "lockstep/nn/dropout.h"
#include "lockstep/nn/embedding.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/norm.h"

#pragma GCC visibility push(default)
namespace lockstep::models {

// The defaults are bert-base. In parentheses the names in config.json.
struct BertConfig {
  std::int64_t vocabulary = 30522;            // (vocab_size)
  std::int64_t positions = 512;               // the longest sequence (max_position_embeddings)
  std::int64_t types = 2;                     // kinds of segments (type_vocab_size)
  std::int64_t width = 768;                   // (hidden_size)
  std::int64_t layers = 12;                   // (num_hidden_layers)
  std::int64_t heads = 12;                    // (num_attention_heads)
  std::int64_t inner = 3072;                  // (intermediate_size)
  float eps = 1e-12F;                         // (layer_norm_eps)
  Activation activation = Activation::kGELU;  // (hidden_act: gelu, relu, silu)
  float dropout = 0.1F;                       // while training (hidden_dropout_prob)
  float attention_dropout = 0.1F;             // of the attention's probabilities (attention_probs_dropout_prob)
  bool pooler = true;                         // has the layer that pools the first position

  // As Gpt2Config::read().
  static BertConfig read(const std::string& file_or_folder);
  std::string json() const;  // config.json's text
};

class BertEmbeddings : public nn::Module {
 public:
  explicit BertEmbeddings(const BertConfig& config);
  Tensors forward_all(const Tensors& ids_and_types) override;  // (N, T) each; the types may be left out
  std::string kind() const override { return "BertEmbeddings"; }
  nn::Embedding word_embeddings, position_embeddings, token_type_embeddings;
  nn::LayerNorm norm;  // "LayerNorm"

 private:
  nn::Dropout dropout_;
};

class BertLayer : public nn::Module {
 public:
  explicit BertLayer(const BertConfig& config);
  // x (N, T, width); lengths as in Bert::encode().
  Tensor run(const Tensor& x, const std::vector<std::int64_t>& lengths);
  Tensor forward(const Tensor& x) override { return run(x, {}); }
  std::string kind() const override { return "BertLayer"; }
  nn::Linear query, key, value;     // "attention.self.query", ...
  nn::Linear attention_output;      // "attention.output.dense"
  nn::LayerNorm attention_norm;     // "attention.output.LayerNorm"
  nn::Linear intermediate, output;  // "intermediate.dense", "output.dense"
  nn::LayerNorm output_norm;        // "output.LayerNorm"

 private:
  nn::ModulePath attention_, self_, attention_output_path_, intermediate_path_, output_path_;
  std::int64_t heads_;
  float attention_dropout_;
  nn::Dropout dropout_;
};

// ids (N, T), int64, T <= positions, to activations (N, T, width).
class Bert : public nn::Module {
 public:
  explicit Bert(const BertConfig& config = {});
  // Sample n has lengths[n] positions, and those after them are padding, which no position attends to; {}: no padding.
  // `types` (N, T), int64, are the segments' numbers; undefined: all 0. Throws InvalidArgument for shapes that do not
  // fit and for a longer sequence.
  Tensor encode(const Tensor& ids, const std::vector<std::int64_t>& lengths = {}, const Tensor& types = {});
  Tensor forward(const Tensor& ids) override { return encode(ids); }
  // tanh of a linear layer of the first position, (N, width): transformers' pooler_output. InvalidArgument without
  // config().pooler.
  Tensor pool(const Tensor& hidden);
  std::string kind() const override { return "Bert"; }
  const BertConfig& config() const { return config_; }
  BertEmbeddings embeddings;
  nn::ModuleList<BertLayer> layer;  // "encoder.layer"

 private:
  BertConfig config_;
  nn::ModulePath encoder_, pooler_path_;
  std::unique_ptr<nn::Linear> pooler_;  // "pooler.dense"
};

// The mean of each sample's positions without padding, (N, T, C) to (N, C). A sample of length 0 gives zeros.
Tensor mean_pooling(const Tensor& hidden, const std::vector<std::int64_t>& lengths);
// Each row divided by its Euclidean norm, at least 1e-12: torch.nn.functional.normalize. x (N, C).
Tensor normalize(const Tensor& x);

}  // namespace lockstep::models
#pragma GCC visibility pop

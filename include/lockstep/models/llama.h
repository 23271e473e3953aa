// Llama (Touvron et al. 2023, arXiv:2302.13971, section 2.2) and its relatives Qwen2 and Qwen3, with the names and the
// computation of transformers' LlamaForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM: rotary positions (Su et al.
// 2021), grouped heads of keys and values (Ainslie et al. 2023), SwiGLU (Shazeer 2020) and RMSNorm.
//
//   models::Llama net(models::LlamaConfig::read("llama"));
//   models::load_pretrained(net, "llama", {.names = models::llama_names()});
//   models::KeyValueCache cache = net.make_cache();        // for sampling: each position is computed once
//   Tensor logits = net.next(ids, cache);                  // then net.next(the chosen ids (N, 1), cache)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/nn/containers.h"
#include "lockstep/nn/embedding.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/norm.h"

#pragma GCC visibility push(default)
namespace lockstep::models {

// The scaling of rotary frequencies that Llama 3.1 introduced (rope_scaling with rope_type "llama3").
struct RopeScaling {
  float factor = 1;  // 1: none
  float low_freq_factor = 1, high_freq_factor = 4;
  std::int64_t original_positions = 8192;  // (original_max_position_embeddings)
};

// In parentheses the names in config.json.
struct LlamaConfig {
  std::string family = "llama";      // llama, qwen2 or qwen3 (model_type)
  std::int64_t vocabulary = 32000;   // (vocab_size)
  std::int64_t positions = 2048;     // the longest sequence (max_position_embeddings)
  std::int64_t width = 4096;         // (hidden_size)
  std::int64_t inner = 11008;        // (intermediate_size)
  std::int64_t layers = 32;          // (num_hidden_layers)
  std::int64_t heads = 32;           // (num_attention_heads)
  std::int64_t key_value_heads = 0;  // (num_key_value_heads); 0: heads
  std::int64_t head_width = 0;       // (head_dim); 0: width / heads
  float eps = 1e-6F;                 // (rms_norm_eps)
  float rope_theta = 10000;
  RopeScaling rope_scaling = {};
  bool attention_bias = false;   // of queries, keys and values; and of the output in the family llama
  bool tied_embeddings = false;  // the output layer shares the embedding's weight (tie_word_embeddings)

  // As Gpt2Config::read().
  static LlamaConfig read(const std::string& file_or_folder);
  std::string json() const;  // config.json's text
};

// Keys and values of the positions that a model has seen, (N, positions, key heads, head width), for each layer.
struct KeyValueCache {
  struct Layer {
    Tensor keys, values;
  };
  std::vector<Layer> layers;
  std::int64_t length = 0;  // positions so far
};

class LlamaAttention : public nn::Module {
 public:
  explicit LlamaAttention(const LlamaConfig& config);
  // x (N, T, width); cosines and sines (T, 1, head width / 2) of the positions; `cache` may be null.
  Tensor run(const Tensor& x, const Tensor& cosines, const Tensor& sines, KeyValueCache::Layer* cache);
  std::string kind() const override { return "LlamaAttention"; }
  nn::Linear q_proj, k_proj, v_proj, o_proj;
  std::unique_ptr<nn::RMSNorm> q_norm, k_norm;  // of each head, in the family qwen3

 private:
  std::int64_t heads_, key_heads_, head_width_;
};

class LlamaMlp : public nn::Module {
 public:
  explicit LlamaMlp(const LlamaConfig& config);
  Tensor forward(const Tensor& x) override;  // down(silu(gate(x)) * up(x))
  std::string kind() const override { return "LlamaMlp"; }
  nn::Linear gate_proj, up_proj, down_proj;
};

class LlamaLayer : public nn::Module {
 public:
  explicit LlamaLayer(const LlamaConfig& config);
  Tensor run(const Tensor& x, const Tensor& cosines, const Tensor& sines, KeyValueCache::Layer* cache);
  std::string kind() const override { return "LlamaLayer"; }
  LlamaAttention self_attn;
  LlamaMlp mlp;
  nn::RMSNorm input_layernorm, post_attention_layernorm;
};

// ids (N, T), int64, T <= positions, to logits (N, T, vocabulary): those at position t predict position t + 1.
class Llama : public nn::Module {
 public:
  // Weights are normal with standard deviation 0.02.
  explicit Llama(const LlamaConfig& config);
  Tensor forward(const Tensor& ids) override;
  KeyValueCache make_cache() const;
  // Logits (N, 1, vocabulary) for the position after ids (N, T), which follow those that the cache has; adds them to
  // the cache. Call it inside a NoGrad. Throws InvalidArgument if there are more than `positions` then.
  Tensor next(const Tensor& ids, KeyValueCache& cache);
  std::string kind() const override { return "Llama"; }
  const LlamaConfig& config() const { return config_; }
  nn::Embedding embed_tokens;  // "model.embed_tokens", and likewise the next two
  nn::ModuleList<LlamaLayer> layers;
  nn::RMSNorm norm;
  std::unique_ptr<nn::Linear> lm_head;  // null with tied embeddings

 private:
  Tensor hidden(const Tensor& ids, KeyValueCache* cache);
  Tensor logits(const Tensor& hidden);

  LlamaConfig config_;
  nn::ModulePath model_;
  std::vector<float> frequencies_;  // of the head_width / 2 rotations, in radians for each position
};

}  // namespace lockstep::models
#pragma GCC visibility pop

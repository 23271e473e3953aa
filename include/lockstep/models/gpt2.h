// GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3), with the names and
// the computation of transformers' GPT2LMHeadModel.
//
//   models::Gpt2 net(models::Gpt2Config::read("gpt2"));   // a folder with config.json
//   models::load_pretrained(net, "gpt2", {.names = models::gpt2_names()});   // and model.safetensors: pretrained.h
//   Tensor logits = net(ids);
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/nn/containers.h"
#include "lockstep/nn/dropout.h"
#include "lockstep/nn/embedding.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/norm.h"

#pragma GCC visibility push(default)
namespace lockstep::models {

// The defaults are GPT-2 with 124 million parameters. In parentheses the names in config.json.
struct Gpt2Config {
  std::int64_t vocabulary = 50257;                    // (vocab_size)
  std::int64_t positions = 1024;                      // the longest sequence (n_positions)
  std::int64_t width = 768;                           // (n_embd)
  std::int64_t layers = 12;                           // (n_layer)
  std::int64_t heads = 12;                            // (n_head)
  std::int64_t inner = 0;                             // width of the feed-forward blocks (n_inner); 0: 4 * width
  float eps = 1e-5F;                                  // (layer_norm_epsilon)
  GeluApproximation gelu = GeluApproximation::kTanh;  // (activation_function: gelu_new or gelu)
  float embedding_dropout = 0.1F;                     // while training (embd_pdrop)
  float attention_dropout = 0.1F;                     // of the attention's probabilities (attn_pdrop)
  float dropout = 0.1F;                               // of each block's results (resid_pdrop)

  // Reads config.json, or the one in a folder. Throws FileError with file, key, expected and found value for another
  // kind of model, for a missing or invalid value, and for a setting that this model does not have.
  static Gpt2Config read(const std::string& file_or_folder);
  std::string json() const;  // config.json's text
};

class Gpt2Attention : public nn::Module {
 public:
  explicit Gpt2Attention(const Gpt2Config& config);
  Tensor forward(const Tensor& x) override;  // (N, T, width)
  std::string kind() const override { return "Gpt2Attention"; }
  nn::Linear c_attn, c_proj;  // width to queries, keys and values (3 * width); and back

 private:
  std::int64_t heads_;
  float attention_dropout_;
  nn::Dropout dropout_;
};

class Gpt2Mlp : public nn::Module {
 public:
  explicit Gpt2Mlp(const Gpt2Config& config);
  Tensor forward(const Tensor& x) override;
  std::string kind() const override { return "Gpt2Mlp"; }
  nn::Linear c_fc, c_proj;

 private:
  GeluApproximation gelu_;
  nn::Dropout dropout_;
};

class Gpt2Block : public nn::Module {
 public:
  explicit Gpt2Block(const Gpt2Config& config);
  Tensor forward(const Tensor& x) override;
  std::string kind() const override { return "Gpt2Block"; }
  nn::LayerNorm ln_1, ln_2;
  Gpt2Attention attn;
  Gpt2Mlp mlp;
};

// ids (N, T), int64, T <= positions, to logits (N, T, vocabulary): those at position t predict position t + 1. The
// output layer shares the weight of the embedding wte. Throws InvalidArgument for a longer sequence.
class Gpt2 : public nn::Module {
 public:
  // Weights are normal with standard deviation 0.02, those that write to the shortcuts divided by sqrt(2 * layers).
  explicit Gpt2(const Gpt2Config& config = {});
  Tensor forward(const Tensor& ids) override;
  // The activations after the last norm, (N, T, width).
  Tensor hidden(const Tensor& ids);
  std::string kind() const override { return "Gpt2"; }
  const Gpt2Config& config() const { return config_; }
  nn::Embedding wte, wpe;  // of words, of positions
  nn::ModuleList<Gpt2Block> h;
  nn::LayerNorm ln_f;

 private:
  Gpt2Config config_;
  nn::Dropout dropout_;
};

}  // namespace lockstep::models
#pragma GCC visibility pop

// The layers of the Transformer (Vaswani et al. 2017, section 3.1), with the parameters of PyTorch's modules and their
// names. Samples come first, (N, T, C): PyTorch's batch_first.
#pragma once

#include "lockstep/nn/attention.h"
#include "lockstep/nn/containers.h"
#include "lockstep/nn/norm.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

struct TransformerOptions {
  std::int64_t feedforward = 2048;  // width between the two linear layers
  // While training: of the attention's probabilities, between the linear layers, and before each sum.
  float dropout = 0.1F;
  Activation activation = Activation::kReLU;  // or kGELU
  float eps = 1e-5F;                          // of the norms
  bool norm_first = false;                    // x + f(norm(x)) in place of norm(x + f(x))
  bool bias = true;
  bool final_norm = false;  // TransformerEncoder and TransformerDecoder: a norm after the last layer
};

// Self-attention, then a feed-forward network of two linear layers: (N, T, C) to (N, T, C).
class TransformerEncoderLayer : public Module {
 public:
  TransformerEncoderLayer(std::int64_t width, std::int64_t heads, const TransformerOptions& options = {});
  Tensor forward(const Tensor& x) override { return encode(x, {}); }
  Tensor encode(const Tensor& x, const AttentionMasks& masks);
  std::string kind() const override { return "TransformerEncoderLayer"; }
  std::string extra_repr() const override;

  MultiheadAttention self_attn;
  Linear linear1, linear2;
  LayerNorm norm1, norm2;

 private:
  TransformerOptions options_;
};

// Self-attention, attention to the encoder's result, then a feed-forward network.
class TransformerDecoderLayer : public Module {
 public:
  TransformerDecoderLayer(std::int64_t width, std::int64_t heads, const TransformerOptions& options = {});
  // {x (N, T, C), memory (N, S, C)}, without masks, to (N, T, C).
  Tensors forward_all(const Tensors& inputs) override;
  // `masks` are those of x, such as {.causal = true}; memory_masks those of the encoder's result, such as the lengths
  // of its samples.
  Tensor decode(const Tensor& x, const Tensor& memory, const AttentionMasks& masks,
                const AttentionMasks& memory_masks = {});
  std::string kind() const override { return "TransformerDecoderLayer"; }
  std::string extra_repr() const override;

  MultiheadAttention self_attn, multihead_attn;
  Linear linear1, linear2;
  LayerNorm norm1, norm2, norm3;

 private:
  TransformerOptions options_;
};

// Layers one after the other: "layers.0", "layers.1", ..., and "norm" with final_norm. Each layer draws its own initial
// values; PyTorch's are copies of the first.
class TransformerEncoder : public Module {
 public:
  TransformerEncoder(std::int64_t count, std::int64_t width, std::int64_t heads,
                     const TransformerOptions& options = {});
  Tensor forward(const Tensor& x) override { return encode(x, {}); }
  Tensor encode(const Tensor& x, const AttentionMasks& masks);
  std::string kind() const override { return "TransformerEncoder"; }

  ModuleList<TransformerEncoderLayer> layers;
  LayerNorm norm;  // used with final_norm

 private:
  bool has_norm_;
};

class TransformerDecoder : public Module {
 public:
  TransformerDecoder(std::int64_t count, std::int64_t width, std::int64_t heads,
                     const TransformerOptions& options = {});
  Tensors forward_all(const Tensors& inputs) override;  // as TransformerDecoderLayer's
  Tensor decode(const Tensor& x, const Tensor& memory, const AttentionMasks& masks,
                const AttentionMasks& memory_masks = {});
  std::string kind() const override { return "TransformerDecoder"; }

  ModuleList<TransformerDecoderLayer> layers;
  LayerNorm norm;

 private:
  bool has_norm_;
};

}  // namespace lockstep::nn
#pragma GCC visibility pop

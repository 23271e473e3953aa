// Attention with several heads (Vaswani et al. 2017, section 3.2.2).
#pragma once

#include <vector>

#include "lockstep/autograd/attention.h"
#include "lockstep/nn/layers.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

struct MultiheadAttentionOptions {
  bool causal = false;  // position t attends only to positions 0 to t
  float dropout = 0;    // of the result, while training
  bool bias = true;
  // Applied to the attention's probabilities, while training: PyTorch's dropout. Memory then grows with the square of
  // the positions.
  float probability_dropout = 0;
};

// Hides keys from the queries of a call; see AttentionOptions. In PyTorch's masks true hides a key; here 0 does.
struct AttentionMasks {
  bool causal = false;  // also if the module's option is set
  std::vector<std::int64_t> key_lengths = {};
  Tensor mask = {};  // broadcast to (N, heads, T, S)
};

// x (N, T, C) to (N, T, C): self-attention. One linear layer computes q, k and v, (N, T, 3, heads, C / heads),
// attention reads them in place, and a second linear layer combines the heads. Parameters and their initial values are
// PyTorch's: in_proj_weight (3 C, C) by Xavier's uniform rule, in_proj_bias 0; out_proj is a Linear whose bias is 0.
class MultiheadAttention : public Module {
 public:
  MultiheadAttention(std::int64_t width, std::int64_t heads, const MultiheadAttentionOptions& options = {});
  Tensor forward(const Tensor& x) override { return attend(x, {}); }
  // The same with masks.
  Tensor attend(const Tensor& x, const AttentionMasks& masks);
  // Cross-attention: the queries of x (N, T, C) attend to keys (N, S, C) and values (N, S, C). A causal mask needs
  // T = S.
  Tensor attend(const Tensor& x, const Tensor& keys, const Tensor& values, const AttentionMasks& masks = {});
  std::string kind() const override { return "MultiheadAttention"; }
  std::string extra_repr() const override;
  Tensor in_proj_weight, in_proj_bias;
  Linear out_proj;

 private:
  AttentionOptions options_with(const AttentionMasks& masks) const;
  Tensor projected(const Tensor& x, std::int64_t first_part, std::int64_t parts) const;
  Tensor combined(const Tensor& heads);

  std::int64_t heads_;
  MultiheadAttentionOptions options_;
};

}  // namespace lockstep::nn
#pragma GCC visibility pop

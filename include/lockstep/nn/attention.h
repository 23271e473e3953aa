// Self-attention with several heads (Vaswani et al. 2017, section 3.2.2).
#pragma once

#include "lockstep/nn/layers.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

struct MultiheadAttentionOptions {
  bool causal = false;  // position t attends only to positions 0 to t
  // Applied to the result; PyTorch applies it to the attention's probabilities, which are not stored here.
  float dropout = 0;
  bool bias = true;
};

// x (N, T, C) to (N, T, C). One linear layer computes q, k and v, (N, T, 3, heads, C / heads), attention reads them in
// place, and a second linear layer combines the heads. Parameters and their initial values are PyTorch's:
// in_proj_weight (3 C, C) by Xavier's uniform rule, in_proj_bias 0; out_proj is a Linear whose bias is 0.
class MultiheadAttention : public Module {
 public:
  MultiheadAttention(std::int64_t width, std::int64_t heads, const MultiheadAttentionOptions& options = {});
  Tensor forward(const Tensor& x) override;
  std::string kind() const override { return "MultiheadAttention"; }
  std::string extra_repr() const override;
  Tensor in_proj_weight, in_proj_bias;
  Linear out_proj;

 private:
  std::int64_t heads_;
  MultiheadAttentionOptions options_;
};

}  // namespace lockstep::nn
#pragma GCC visibility pop

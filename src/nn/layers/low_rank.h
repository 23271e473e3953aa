// The matrices that nn/lora.h adds to a linear layer.
#pragma once

#include "lockstep/autograd/ops.h"
#include "lockstep/nn/layers.h"

namespace lockstep::nn {

inline constexpr const char *kLoraA = "lora_A", *kLoraB = "lora_B";

struct Linear::LowRank {
  LowRank(std::int64_t in, std::int64_t rank, std::int64_t out, float scale_of_product, float p)
      : a(in, rank, {.bias = false}), b(rank, out, {.bias = false}), scale(scale_of_product), dropout_of_input(p) {
    b.weight.fill(0);
  }

  // x (..., I) to scale * B * A * x, (..., O).
  Tensor product(const Tensor& x, bool is_training) {
    return lockstep::scale(b(a(dropout(x, dropout_of_input, is_training))), scale);
  }

  Linear a, b;  // (rank, I), (O, rank)
  const float scale, dropout_of_input;
};

// W + scale * B * A.
Tensor merged_weight(const Linear& layer);

}  // namespace lockstep::nn

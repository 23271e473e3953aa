// Losses, under the names that people look for.
#pragma once

#include "lockstep/autograd/ops.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

// Those of autograd/losses.h, and
//   nn::cross_entropy(net(images), labels, {.label_smoothing = 0.1f})
// which is softmax_cross_entropy(), by PyTorch's name.
using lockstep::binary_cross_entropy_with_logits;
using lockstep::CrossEntropyOptions;
using lockstep::l1_loss;
using lockstep::mse_loss;
using lockstep::nll_loss;
using lockstep::Reduction;
inline Tensor cross_entropy(const Tensor& logits, const Tensor& labels, const CrossEntropyOptions& options = {}) {
  return softmax_cross_entropy(logits, labels, options);
}

// How many rows of logits (N, K) have their largest value (the first of equals) at the label.
std::int64_t count_correct(const Tensor& logits, const Tensor& labels);

}  // namespace lockstep::nn
#pragma GCC visibility pop

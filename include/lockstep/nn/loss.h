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
using lockstep::kIgnoreIndex;
using lockstep::l1_loss;
using lockstep::mse_loss;
using lockstep::nll_loss;
using lockstep::NllLossOptions;
using lockstep::Reduction;
inline Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options = {}) {
  return softmax_cross_entropy(logits, targets, options);
}

// How many rows of logits (..., K) have their largest value (the first of equals) at the label, which is not
// ignore_index.
std::int64_t count_correct(const Tensor& logits, const Tensor& labels, std::int64_t ignore_index = kIgnoreIndex);
// How many labels are not ignore_index: what a mean cross entropy without weights is divided by, for ddp.set_weight().
// Waits for a device.
std::int64_t count_labels(const Tensor& labels, std::int64_t ignore_index = kIgnoreIndex);

}  // namespace lockstep::nn
#pragma GCC visibility pop

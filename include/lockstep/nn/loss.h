// Losses under their usual names.
#pragma once

#include "lockstep/autograd/ops.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

// The losses of autograd/losses.h, and
//   nn::cross_entropy(net(images), labels, {.label_smoothing = 0.1f})
// which is softmax_cross_entropy() under PyTorch's name. For a net that ends with a softmax, as in Keras:
//   nn::cross_entropy(net(images), labels, {.from_logits = false})
using lockstep::binary_cross_entropy;
using lockstep::binary_cross_entropy_with_logits;
using lockstep::BinaryCrossEntropyOptions;
using lockstep::cosine_embedding_loss;
using lockstep::CosineEmbeddingOptions;
using lockstep::CrossEntropyOptions;
using lockstep::ctc_loss;
using lockstep::CtcLossOptions;
using lockstep::huber_loss;
using lockstep::kIgnoreIndex;
using lockstep::kl_div;
using lockstep::KlDivOptions;
using lockstep::l1_loss;
using lockstep::mse_loss;
using lockstep::nll_loss;
using lockstep::NllLossOptions;
using lockstep::Reduction;
using lockstep::smooth_l1_loss;
using lockstep::triplet_margin_loss;
using lockstep::TripletMarginOptions;
inline Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options = {}) {
  return softmax_cross_entropy(logits, targets, options);
}

// Counts the rows of logits (..., K) whose largest value (the first of equal ones) is at the label; labels equal to
// ignore_index are not counted. Waits for the device.
std::int64_t count_correct(const Tensor& logits, const Tensor& labels, std::int64_t ignore_index = kIgnoreIndex);
// Counts the labels that are not ignore_index: the divisor of a mean cross entropy without weights, for
// ddp.set_weight(). Waits for the device.
std::int64_t count_labels(const Tensor& labels, std::int64_t ignore_index = kIgnoreIndex);

}  // namespace lockstep::nn
#pragma GCC visibility pop

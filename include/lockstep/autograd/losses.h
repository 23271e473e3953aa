// Losses: each gives a float32 scalar, and computes in float32 whatever the type of its inputs is. Their mean over nothing is undefined:
// InvalidArgument.
#pragma once

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// Over the rows of (N, K), or over all elements where a loss is elementwise.
enum class Reduction { kMean, kSum };

struct CrossEntropyOptions {
  float label_smoothing = 0;  // s in 0 .. 1
  Reduction reduction = Reduction::kMean;
};
// Of a row: -sum over k of target_k * log softmax(logits)_k with target_k = (1 - s) * (label == k) + s / K (Szegedy et al. 2016, section 7;
// PyTorch's). logits (N, K), labels (N) int64 in [0, K). A label outside throws InvalidArgument on the CPU; on a GPU, whose labels the host
// does not wait for, it makes the loss and its row's gradients NaN.
Tensor softmax_cross_entropy(const Tensor& logits, const Tensor& labels, const CrossEntropyOptions& options = {});

// Of a row: -log_probabilities[label]. log_probabilities (N, K), labels as above.
Tensor nll_loss(const Tensor& log_probabilities, const Tensor& labels, Reduction reduction = Reduction::kMean);

// Of an element (x - target)^2, and |x - target|. Equal shapes; both inputs are differentiated, |x - target| as 0 where they are equal.
Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::kMean);
Tensor l1_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::kMean);

// Of an element -target * log sigmoid(x) - (1 - target) * log(1 - sigmoid(x)), computed as max(x, 0) - x * target + log(1 + exp(-|x|)),
// which does not overflow. Equal shapes; both inputs are differentiated.
Tensor binary_cross_entropy_with_logits(const Tensor& logits, const Tensor& target, Reduction reduction = Reduction::kMean);

// sum x^2 / 2 (TensorFlow's l2_loss).
Tensor l2_loss(const Tensor& x);

}  // namespace lockstep
#pragma GCC visibility pop

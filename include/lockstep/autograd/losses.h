// Losses: each gives a float32 scalar, or with Reduction::kNone one float32 a row or element, and computes in float32
// whatever the type of its inputs is. Their mean over nothing is undefined: InvalidArgument.
#pragma once

#include "lockstep/core/operator_shapes.h"
#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

struct CrossEntropyOptions {
  float label_smoothing = 0;                 // s in 0 .. 1
  Reduction reduction = Reduction::kMean;    // over the rows
  std::int64_t ignore_index = kIgnoreIndex;  // rows with this label, say padding, do not count
  Tensor weight = {};                        // of each class, (K) float32, not differentiated; undefined: 1
};
// Of a row: sum over k of weight_k * target_k * -log softmax(logits)_k with target_k = (1 - s) * (label == k) + s / K
// (Szegedy et al. 2016, section 7), as PyTorch's. The class is the last dimension: logits (..., K), labels (...) int64
// in [0, K). kNone gives (...). The mean over labels is divided by the sum of weight[label] over the rows that are not
// ignored; where nothing counts it is 0, with gradients 0, where PyTorch's is NaN. Any other label outside throws
// InvalidArgument with its place on the CPU; on a GPU, whose labels the host does not wait for, it makes the loss and
// its row's gradients NaN. Soft targets, floats (..., K), stand in the place of (label == k) and are differentiated,
// too; their mean is divided by the number of rows. They exclude ignore_index.
Tensor softmax_cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options = {});

struct NllLossOptions {
  Reduction reduction = Reduction::kMean;
  std::int64_t ignore_index = kIgnoreIndex;
  Tensor weight = {};  // both as above
};
// Of a row: weight[label] * -log_probabilities[label]. log_probabilities (..., K), labels as above.
Tensor nll_loss(const Tensor& log_probabilities, const Tensor& labels, const NllLossOptions& options);
Tensor nll_loss(const Tensor& log_probabilities, const Tensor& labels, Reduction reduction = Reduction::kMean);

// Of an element (x - target)^2, and |x - target|. Equal shapes; both inputs are differentiated, |x - target| as 0 where
// they are equal.
Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::kMean);
Tensor l1_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::kMean);

// Of an element -target * log sigmoid(x) - (1 - target) * log(1 - sigmoid(x)), computed as max(x, 0) - x * target +
// log(1 + exp(-|x|)), which does not overflow. Equal shapes; both inputs are differentiated.
Tensor binary_cross_entropy_with_logits(const Tensor& logits, const Tensor& target,
                                        Reduction reduction = Reduction::kMean);

// sum x^2 / 2 (TensorFlow's l2_loss).
Tensor l2_loss(const Tensor& x);

}  // namespace lockstep
#pragma GCC visibility pop

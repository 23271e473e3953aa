// Losses, under the names that people look for.
#pragma once

#include "lockstep/autograd/ops.h"

namespace lockstep::nn {

// Mean over the batch; see softmax_cross_entropy in autograd/ops.h. A label that is no class throws InvalidArgument on the CPU; on a GPU,
// whose labels the host does not wait for, it makes loss and gradients NaN.
inline Tensor cross_entropy(const Tensor& logits, const Tensor& labels) { return softmax_cross_entropy(logits, labels); }

// How many rows of logits (N, K) have their largest value (the first of equals) at the label.
std::int64_t count_correct(const Tensor& logits, const Tensor& labels);

}  // namespace lockstep::nn

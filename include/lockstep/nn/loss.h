// Losses, under the names that people look for.
#pragma once

#include "lockstep/autograd/ops.h"

namespace lockstep::nn {

// Mean over the batch; see softmax_cross_entropy in autograd/ops.h.
inline Tensor cross_entropy(const Tensor& logits, const Tensor& labels) { return softmax_cross_entropy(logits, labels); }

// How many rows of logits (N, K) have their largest value (the first of equals) at the label.
std::int64_t count_correct(const Tensor& logits, const Tensor& labels);

}  // namespace lockstep::nn

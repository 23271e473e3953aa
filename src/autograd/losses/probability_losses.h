#pragma once

#include "lockstep/autograd/losses.h"

namespace lockstep {

// softmax_cross_entropy() with .from_logits = false.
Tensor cross_entropy_of_probabilities(const Tensor& probabilities, const Tensor& targets,
                                      const CrossEntropyOptions& options);

}  // namespace lockstep

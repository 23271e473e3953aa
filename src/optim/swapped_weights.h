// Access to the trained weights while ema.swapped() makes the parameters hold averages.
#pragma once

#include <string>
#include <vector>

#include "lockstep/tensor/named_tensor.h"

namespace lockstep::optim {

// Returns the tensors, with swapped parameters replaced by the memory in which their weights are kept. Any thread.
std::vector<NamedTensor> with_weights(std::vector<NamedTensor> tensors);

// Returns the name of the first tensor that currently holds an average, or "".
std::string first_swapped(const std::vector<NamedTensor>& tensors);

}  // namespace lockstep::optim

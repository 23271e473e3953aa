// The weights of a training while ema.swapped() lives: the parameters hold averages then.
#pragma once

#include <string>
#include <vector>

#include "lockstep/tensor/named_tensor.h"

namespace lockstep::optim {

// The same tensors, those of swapped parameters replaced by the memory in which their weights wait. Any thread.
std::vector<NamedTensor> with_weights(std::vector<NamedTensor> tensors);

// The name of the first of these tensors that holds an average at the moment; "": none does.
std::string first_swapped(const std::vector<NamedTensor>& tensors);

}  // namespace lockstep::optim

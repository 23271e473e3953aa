// Warnings of mistakes that users of DistributedDataParallel make, before they show in the weights. Each function says
// nothing when all is well, nor on a rank other than 0: the ranks run one program.
#pragma once

#include <deque>
#include <vector>

#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

// During a backward pass: warns of leaves that got a gradient and are neither among `parameters` nor among the `inputs`
// of the module. Leaves with hooks are another wrapper's.
void warn_of_unregistered_leaves(int rank, const std::vector<NamedTensor>& parameters,
                                 const std::deque<Tensor>& inputs);

// Warns of parameters that want no gradient any more. Returns whether there are any.
bool warn_of_frozen(int rank, const std::vector<NamedTensor>& parameters);

}  // namespace lockstep

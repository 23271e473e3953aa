// Warnings about common mistakes with DistributedDataParallel, before they affect the weights. Only rank 0 logs them,
// because all ranks run the same program.
#pragma once

#include <deque>
#include <vector>

#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

// Call it during a backward pass. Warns about leaves that got a gradient and are neither among `parameters` nor among
// the module's `inputs`. Leaves with hooks belong to another wrapper.
void warn_of_unregistered_leaves(int rank, const std::vector<NamedTensor>& parameters,
                                 const std::deque<Tensor>& inputs);

// Warns about parameters that no longer require a gradient. Returns whether there are any.
bool warn_of_frozen(int rank, const std::vector<NamedTensor>& parameters);

}  // namespace lockstep

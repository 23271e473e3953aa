// Gets the only output of a module.
#pragma once

#include "lockstep/nn/module.h"

namespace lockstep::nn {

// Throws InvalidArgument that names the module and says how to get all outputs, unless there is exactly one.
Tensor only_output(const Module& module, Tensors outputs);

}  // namespace lockstep::nn

// The parameters that an optimizer trains.
#pragma once

#include <vector>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

// The parameters that require a gradient, each once: a parameter with two names (tied weights) has one gradient.
std::vector<NamedTensor> trainable_parameters(const Module& module);

}  // namespace lockstep::nn

// Lets summary() see what every module of a forward pass gives.
#pragma once

#include <functional>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

using ForwardObserver = std::function<void(const Module& module, const Tensor& result)>;

// Called after each forward of this thread while set.
extern thread_local const ForwardObserver* forward_observer;

}  // namespace lockstep::nn

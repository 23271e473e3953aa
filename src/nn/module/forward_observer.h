// Lets summary() and graphs of modules see what every module of a forward pass takes and gives.
#pragma once

#include <functional>
#include <span>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

using ForwardObserver =
    std::function<void(const Module& module, std::span<const Tensor> inputs, std::span<const Tensor> outputs)>;

// Called after each forward of this thread while set.
extern thread_local const ForwardObserver* forward_observer;

// One forward pass of zeros on the first parameter's device, in eval mode and without recording, that changes nothing:
// summary()'s.
void observe_forward(Module& module, std::span<const InputSpec> inputs, const ForwardObserver& observer);

}  // namespace lockstep::nn

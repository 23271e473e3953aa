// Lets summary() and graphs of modules observe the inputs and outputs of every module in a forward pass.
#pragma once

#include <functional>
#include <span>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

using ForwardObserver =
    std::function<void(const Module& module, std::span<const Tensor> inputs, std::span<const Tensor> outputs)>;

// Called after each forward of this thread while it is set.
extern thread_local const ForwardObserver* forward_observer;

// Called before each forward of this thread while it is set.
extern thread_local const std::function<void(const Module& module)>* forward_announcer;

// Runs one forward pass with zeros on the first parameter's device, in eval mode and without recording, and changes
// nothing; for summary().
void observe_forward(Module& module, std::span<const InputSpec> inputs, const ForwardObserver& observer);

}  // namespace lockstep::nn

// Logs the devices of parameters and operators, like TensorFlow's log_device_placement.
#pragma once

#include "lockstep/nn/module.h"
#include "lockstep/train/strategy.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

// Logs a line for each parameter and buffer, "conv1.weight: cpu:0 (64x5x5x3 float32)", and from then on one for each
// operator's first call on one of their devices, "operator conv2d: cpu:0" (train/operator_log.h). Call it when the
// model is on its devices, before the first step.
void log_device_placement(const nn::Module& model);
// The same for the strategy's model and for operators on all devices that compute. Collective if model() is.
void log_device_placement(Strategy& strategy);

}  // namespace lockstep::train
#pragma GCC visibility pop

// Which operator runs on which device: a line in the log for each operator's first call on a device.
#pragma once

#include "lockstep/core/device.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

// From now on the first call of each operator of core/operators.def on `device` is logged, "operator conv2d: cpu:0"; so
// are those that other operators call. Until it is turned off, which also forgets what was logged. The log
// observes the device's kernels (Device::observe_kernels); a device that is not logged pays nothing. Call it while
// nothing computes on the device. Of a stream that is not its device's default one, the line names the first logged
// device of that kind. Operators of families of other layers (augmentation) are not logged. Throws InvalidArgument for
// the 65th device.
void log_operators(Device& device, bool on = true);

}  // namespace lockstep::train
#pragma GCC visibility pop

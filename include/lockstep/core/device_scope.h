// The device of new tensors for which the program names none: a thread's DeviceScope, as TensorFlow's `with tf.device`,
// or the process's default device, as torch.set_default_device.
//
//   {
//     const ls::DeviceScope scope("/gpu:0");
//     Net net;                                       // its parameters and buffers are on the GPU
//     const ls::Tensor noise = ls::Tensor::zeros({2, 3});  // and so is this
//   }
//
// These follow it: Tensor::empty, zeros, full and from, and therefore the constructors of all modules and optimizers'
// parameters in them. A call with a device of its own does not. Operators compute where their inputs are, data loaders
// make batches on the CPU unless they are given a device, and strategies move models to the devices that they drive,
// as they do without a scope. Weights depend on the seed alone, never on the device.
#pragma once

#include <string>

#include "lockstep/core/device.h"

#pragma GCC visibility push(default)
namespace lockstep {

// The innermost DeviceScope of this thread, else set_default_device()'s, else the CPU (cpu_device()). Never blocks.
Device& default_device();

// Sets the default of all threads that are in no DeviceScope. Thread-safe. The text is a name of device_named()
// (core/logical_devices.h); throws InvalidArgument as that does, and then changes nothing. There is no soft placement:
// a GPU that does not exist is an error, and never the CPU in its place.
void set_default_device(Device& device);
void set_default_device(const std::string& name);

// While it lives, `device` is this thread's default; threads that are started meanwhile do not inherit it. Scopes nest,
// and end in the reverse order on the thread that made them. Throws InvalidArgument as device_named() does.
class DeviceScope {
 public:
  explicit DeviceScope(Device& device);
  explicit DeviceScope(const std::string& name);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  Device* const before_;
};

}  // namespace lockstep
#pragma GCC visibility pop

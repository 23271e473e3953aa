// A tensor and its name, for users, checkpoints and messages.
#pragma once

#include <string>
#include <vector>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

struct NamedTensor {
  std::string name;  // dotted path from the module that was queried: "conv1.weight"
  Tensor tensor;
};

// Tensors read from a file, which another framework may have written. Rename or remove entries in place: copying them
// into another vector loses the file's layout.
struct FileTensors : std::vector<NamedTensor> {
  explicit FileTensors() = default;

  // The order of the dimensions of convolution weights, as the file specifies: "OHWI" (out, height, width, in;
  // Lockstep's), "OIHW" (PyTorch's), or "" if it does not.
  std::string convolution_weights = {};
};

}  // namespace lockstep
#pragma GCC visibility pop

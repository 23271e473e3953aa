// A tensor and the name under which people, checkpoints and messages know it.
#pragma once

#include <string>
#include <vector>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

struct NamedTensor {
  std::string name;  // dotted path from the module it was asked of: "conv1.weight"
  Tensor tensor;
};

// Tensors as a file had them, which may be another framework's. Change names and leave tensors out in place: a vector
// of your own does not know the file's layout any more.
struct FileTensors : std::vector<NamedTensor> {
  explicit FileTensors() = default;

  // The order of the dimensions of convolutions' weights, as the file says: "OHWI" (out, height, width, in;
  // Lockstep's), "OIHW" (PyTorch's);
  // "": it does not say.
  std::string convolution_weights = {};
};

}  // namespace lockstep
#pragma GCC visibility pop

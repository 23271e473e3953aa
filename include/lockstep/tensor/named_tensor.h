// A tensor and the name under which people, checkpoints and messages know it.
#pragma once

#include <string>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

struct NamedTensor {
  std::string name;  // dotted path from the module it was asked of: "conv1.weight"
  Tensor tensor;
};

}  // namespace lockstep
#pragma GCC visibility pop

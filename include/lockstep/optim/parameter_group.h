// Groups of parameters, and the state that an optimizer keeps for them.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/tensor/named_tensor.h"

#pragma GCC visibility push(default)
namespace lockstep::optim {

// Returns whether it can be a learning rate.
inline bool is_rate(float lr) { return std::isfinite(lr) && lr >= 0; }

// Parameters with their own learning rate and weight decay; other options are the optimizer's.
struct ParameterGroup {
  std::vector<NamedTensor> parameters;
  float lr_factor = 1;                // their learning rate is lr() times this
  std::optional<float> weight_decay;  // nullopt: the optimizer's
};

// A tensor of an optimizer's state, or this rank's slice of it.
struct StatePart {
  std::string name;
  Tensor values;           // live; a slice has one dimension
  Shape whole;             // shape of the full tensor
  std::int64_t begin = 0;  // elements of the full tensor before the slice
  bool is_slice = false;
};

}  // namespace lockstep::optim
#pragma GCC visibility pop

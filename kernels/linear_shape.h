// The sizes of a linear layer: x (batch, in) times the transposed weight (out, in) gives y (batch, out).
#pragma once

#include <cstdint>

#include "lockstep/core/view.h"

namespace lockstep {

struct LinearShape {
  std::int64_t batch, in_features, out_features;

  bool operator==(const LinearShape&) const = default;
};

// Takes the views of x and y, or of their gradients.
inline LinearShape linear_shape(In x, In y) { return {x.shape[0], x.shape[1], y.shape[1]}; }

}  // namespace lockstep

// How a dropout decides.
#pragma once

#include <cstdint>

#include "lockstep/core/operator_shapes.h"
#include "lockstep/core/philox.h"

namespace lockstep {

struct DropoutRule {
  std::uint32_t threshold;  // words from here on keep their element
  float factor;             // of what is kept
};
inline DropoutRule dropout_rule(const DropoutParams& params) {
  return {static_cast<std::uint32_t>(static_cast<double>(params.p) * 0x1p32), 1 / (1 - params.p)};
}

}  // namespace lockstep

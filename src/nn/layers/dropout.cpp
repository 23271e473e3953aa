#include "lockstep/nn/dropout.h"

#include <fmt/format.h>

namespace lockstep::nn {

Dropout::Dropout(float p) : p_(p) {
  if (!(p >= 0 && p < 1)) throw InvalidArgument("Dropout: p must be in [0, 1), got {}", p);
}

std::string Dropout::extra_repr() const { return fmt::format("p={}", p_); }

}  // namespace lockstep::nn

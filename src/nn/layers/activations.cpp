#include "lockstep/nn/activations.h"

#include <fmt/format.h>

namespace lockstep::nn {

std::string LeakyReLU::extra_repr() const { return fmt::format("negative_slope={}", negative_slope_); }

}  // namespace lockstep::nn

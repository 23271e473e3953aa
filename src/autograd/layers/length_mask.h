// The mask that the samples' lengths make.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

// (N, extent), uint8: 1 at the first lengths[n] positions of sample n, and 0 at its padding. A Trace sees it as a
// function of the lengths.
Tensor length_mask(const std::vector<std::int64_t>& lengths, std::int64_t extent, Device& device);
// The same as (steps, N, 1).
Tensor step_mask(const std::vector<std::int64_t>& lengths, std::int64_t steps, Device& device);

}  // namespace lockstep

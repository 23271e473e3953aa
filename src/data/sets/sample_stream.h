// The random numbers of one sample in one epoch.
#pragma once

#include <cstdint>

#include "lockstep/tensor/random.h"

namespace lockstep::data {

// Gives each of 2^28 epochs x 2^32 samples its own stream.
inline std::uint64_t augmentation_stream(std::int64_t index, std::int64_t epoch) {
  return random_stream(RandomUse::kAugmentation,
                       (static_cast<std::uint64_t>(epoch) << 32) + static_cast<std::uint64_t>(index));
}

}  // namespace lockstep::data

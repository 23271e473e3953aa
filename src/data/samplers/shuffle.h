// Shuffling by the algorithm of Fisher and Yates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/tensor/random.h"

namespace lockstep::data {

// `items` has at most 2^32 - 1 elements.
template <typename T> void shuffle(std::vector<T>& items, Philox& random) {
  for (std::size_t left = items.size(); left > 1; --left)
    std::swap(items[left - 1], items[random.below(static_cast<std::uint32_t>(left))]);
}

}  // namespace lockstep::data

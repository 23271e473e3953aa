// Shared by the sampler tests: ranks, and lists of samples.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "lockstep/core/place.h"

namespace lockstep::data {

using Indices = std::vector<std::int64_t>;

inline Place rank_of(int rank, int ranks) { return {rank, ranks, rank, ranks}; }

// Returns 0, 1, ..., size - 1.
inline Indices range(std::int64_t size) {
  Indices all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

inline Indices sorted(Indices all) {
  std::sort(all.begin(), all.end());
  return all;
}

// Returns the samples of all batches in order.
inline Indices flat(const std::vector<Indices>& batches) {
  Indices all;
  for (const Indices& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

}  // namespace lockstep::data

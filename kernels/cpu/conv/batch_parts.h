// The parts of a batch whose gradients of weights are summed apart (sum_of_parts() in core/process/compute_threads.h).
#pragma once

#include <algorithm>
#include <cstdint>

namespace lockstep {

// The number of parts depends only on the size of the batch, so that results do not depend on the number of threads.
inline std::int64_t parts_of_batch(std::int64_t images) {
  constexpr std::int64_t kImagesOfAPart = 8, kMostParts = 8;
  return std::clamp<std::int64_t>(images / kImagesOfAPart, 1, kMostParts);
}

}  // namespace lockstep

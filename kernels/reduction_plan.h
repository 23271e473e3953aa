// Divides sums over any dimensions into a few plain ones. Dimensions of extent 1 are removed, and neighbours that are
// both summed or both kept are merged; then the summed groups are processed one by one, from the last: each step sums
// the middle dimension of an array (outer, n, inner).
#pragma once

#include <vector>

#include "kernels/strided_loop.h"

namespace lockstep {

struct ReductionStep {
  std::int64_t outer, n, inner;
};

// There is no step if y has as many elements as x and nothing is summed. `y` may lack leading dimensions.
inline std::vector<ReductionStep> reduction_steps(const Shape& x, const Shape& y) {
  const StridedLoop<2> loop(x, {strides_of(x), broadcast_strides(y, x)});
  std::vector<ReductionStep> steps;
  std::int64_t inner = 1;
  for (int dim = loop.dims - 1; dim >= 0; --dim) {
    std::int64_t outer = 1;
    for (int before = 0; before < dim; ++before) outer *= loop.extents[before];
    if (loop.strides[1][dim] == 0)
      steps.push_back({outer, loop.extents[dim], inner});
    else
      inner *= loop.extents[dim];
  }
  return steps;
}

}  // namespace lockstep

#include "src/comm/host/reduce/reduce_kernels.h"

#include <algorithm>

#include "lockstep/core/error.h"
#include "src/comm/host/reduce/reduce_loops.h"

namespace lockstep::host {

void reduce(const Reduction& job) {
  LOCKSTEP_CHECK(job.inputs < 1 << kTreeLevels, "{} inputs", job.inputs);
  if (job.count == 0) return;
  switch (job.dtype) {
    case DType::kFloat32:
    case DType::kFloat64:
    case DType::kFloat16:
    case DType::kBFloat16: return reduce_floats(job);
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kInt32:
    case DType::kInt64: return reduce_integers(job);
  }
}

Slice slice_of(std::size_t count, DType dtype, int rank, int ranks) {
  const std::size_t per_line = kCacheLine / size_of(dtype);
  const std::size_t lines = (count + per_line - 1) / per_line;
  const auto r = static_cast<std::size_t>(rank), n = static_cast<std::size_t>(ranks);
  const auto boundary = [&](std::size_t k) {
    return std::min(count, (lines / n * k + std::min(k, lines % n)) * per_line);
  };
  return {boundary(r), boundary(r + 1)};
}

}  // namespace lockstep::host

// Reductions (sums, products, minima, ...) of the ranks' values. The order depends on the ranks only, so that the bits
// are the same on every path of the data.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/comm/operation.h"

namespace lockstep::host {

enum class ReduceOrder : std::uint8_t {
  kRank,  // ((0 + 1) + 2) + 3
  kTree,  // (0 + 1) + (2 + 3): neighbours, then neighbouring pairs, ...; smaller rounding errors with many ranks
};

// Computes out[j][i] = in[0][i] + in[1][i] + ... for all j and all i < count, in the given order. An output may be one
// of the inputs (the same pointer), but must not overlap one otherwise. kAvg multiplies the sum by 1 / divisor in the
// accumulation type; float16 and bfloat16 accumulate in float. kMin and kMax give NaN if any input is NaN. A NaN result
// is always the positive quiet NaN without payload. The bitwise operations are for integers.
struct Reduction {
  DType dtype;
  ReduceOp op;
  int inputs;
  int outputs;
  const std::byte* const* in;
  std::byte* const* out;
  std::size_t count;
  ReduceOrder order = ReduceOrder::kRank;
  int divisor = 0;  // for kAvg; 0: the number of inputs
};
void reduce(const Reduction& job);

// The part of `count` elements that rank `rank` of `ranks` reduces: full cache lines, divided as evenly as possible.
struct Slice {
  std::size_t begin = 0;  // in elements
  std::size_t end = 0;
  std::size_t count() const { return end - begin; }
};
Slice slice_of(std::size_t count, DType dtype, int rank, int ranks);

}  // namespace lockstep::host

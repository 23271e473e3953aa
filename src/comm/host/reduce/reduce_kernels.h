// Sums (products, minima, ...) of the ranks' values, in an order of their ranks alone: the same bits on whatever path
// they came.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/comm/operation.h"

namespace lockstep::host {

enum class ReduceOrder : std::uint8_t {
  kRank,  // ((0 + 1) + 2) + 3
  kTree,  // (0 + 1) + (2 + 3): neighbours, then neighbouring pairs, ...; with many ranks, smaller errors of rounding
};

// out[j][i] = in[0][i] + in[1][i] + ... for all j and all i < count, in the given order. An output may be one of the
// inputs (the same pointer), never one that overlaps otherwise. kAvg multiplies the sum by 1 / divisor in the
// accumulation type; float16 and bfloat16 accumulate in float. NaN wins in kMin and kMax. A result that is NaN is the
// positive quiet NaN without payload, whatever NaNs went in. The bitwise operations are for integers.
struct Reduction {
  DType dtype;
  ReduceOp op;
  int inputs;
  int outputs;
  const std::byte* const* in;
  std::byte* const* out;
  std::size_t count;
  ReduceOrder order = ReduceOrder::kRank;
  int divisor = 0;  // of kAvg; 0: as many as there are inputs
};
void reduce(const Reduction& job);

// The share of rank `rank` of `ranks` in `count` elements: whole cache lines, as even as they divide.
struct Slice {
  std::size_t begin = 0;  // elements
  std::size_t end = 0;
  std::size_t count() const { return end - begin; }
};
Slice slice_of(std::size_t count, DType dtype, int rank, int ranks);

}  // namespace lockstep::host

// The sums of squares of averages that no rank has, among ranks that have mapped each other's gradients. Each gradient
// has one rank that reads it from all of them, averages and squares it, and writes its sum to all: the order of
// additions is that of a sum over the average, and so are the bits. A rank reads about as many values as the gradients
// have. Two barriers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// For each of the gradients, of these numbers of elements, the rank that sums it: the largest first, to the rank with
// the fewest elements.
std::vector<int> ranks_that_sum(std::span<const std::int64_t> counts, int ranks);

class SharedSquares {
 public:
  // Collective. Of gradient k there are counts[k] values on each rank, that of rank r from grads[k * ranks + r] on.
  SharedSquares(ProcessGroup& group, std::span<const std::int64_t> counts, std::vector<const float*> grads);

  // Collective: sums (gradients), of the CPU. Between the two barriers all ranks read the gradients, and no later.
  // `pass`: its number.
  void sum(const Tensor& sums, std::int32_t pass);

 private:
  ProcessGroup& group_;
  const std::vector<const float*> grads_;
  std::vector<std::size_t> own_;       // the gradients that this rank sums
  std::vector<UpdateRanks> ranks_;     // of these
  std::vector<UpdateTensor> tensors_;  // the same
  std::vector<double> own_sums_;
  Buffer memory_;                // this rank's, which all write: the sums of all gradients
  std::vector<double*> copies_;  // of all ranks
};

}  // namespace lockstep

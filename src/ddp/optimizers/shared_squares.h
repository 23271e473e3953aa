// Computes the sums of squares of averages that no rank has, for ranks that have mapped each other's gradients. For
// each gradient one rank reads it from all ranks, averages and squares it, and writes the sum to all. The order of
// additions, and so the bits, are those of a sum over the average. Each rank reads about as many values as the
// gradients have. Takes two barriers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// Assigns to each gradient, given the numbers of elements, the rank that sums it: the largest first, each to the rank
// with the fewest elements so far.
std::vector<int> ranks_that_sum(std::span<const std::int64_t> counts, int ranks);

class SharedSquares {
 public:
  // Collective. Gradient k has counts[k] values on each rank; those of rank r begin at grads[k * ranks + r].
  SharedSquares(ProcessGroup& group, std::span<const std::int64_t> counts, std::vector<const float*> grads);

  // Collective. Writes to sums (gradients), on the CPU. Between the two barriers all ranks read the gradients, but not
  // later. `pass` is the pass's number.
  void sum(const Tensor& sums, std::int32_t pass);

 private:
  ProcessGroup& group_;
  const std::vector<const float*> grads_;
  std::vector<std::size_t> own_;       // the gradients that this rank sums
  std::vector<SharedUpdate> updates_;  // for these
  std::vector<UpdateTensor> tensors_;  // for these
  std::vector<double> own_sums_;
  Buffer memory_;                // this rank's, to which all ranks write the sums of all gradients
  std::vector<double*> copies_;  // of all ranks
};

}  // namespace lockstep

// The parameters that a pass leaves without a gradient: refused, detected in each pass, or fixed by the first one.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/ddp_options.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

bool wants_and_has_grad(const Tensor& parameter);  // false for a frozen one

class MissingGradients {
 public:
  // The references must outlive it.
  MissingGradients(ProcessGroup& group, const std::vector<NamedTensor>& parameters,
                   const DistributedDataParallelOptions& options);

  // Called at the end of a pass, with all buckets reduced. `missing` has the indices of the parameters without a
  // gradient on this rank. Those that other ranks have now hold the average. Ends the group and throws InvalidArgument
  // for those that may not be missing. Frozen ones never count. `step` is for messages and counts from 1.
  void settle(const std::vector<std::size_t>& missing, std::uint64_t step);

  // The same for a rank without data, which takes part in the others' pass and misses none of its own gradients.
  void follow(const std::vector<std::size_t>& missing);

  // The parameters that had a gradient on no rank in that pass, including frozen ones.
  const std::vector<std::size_t>& unused() const { return unused_; }

  bool asks_each_pass() const { return policy_ == Policy::kFind; }

 private:
  enum class Policy { kRefuse, kFind, kFixed };
  void refuse(std::uint64_t step);
  void drop_frozen(const std::vector<std::size_t>& missing);
  void take_what_others_have(bool ask);
  void compare_with_first(std::uint64_t step);

  ProcessGroup& group_;
  const std::vector<NamedTensor>& parameters_;
  const Policy policy_;
  std::vector<std::size_t> missing_;  // of this pass, without frozen ones
  std::vector<std::size_t> unused_;
  std::vector<std::uint8_t> used_;                 // one bit per parameter: whether any rank has its gradient
  std::optional<std::vector<std::size_t>> fixed_;  // static graph: missing_ of the first pass
};

}  // namespace lockstep

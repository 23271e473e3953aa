// The parameters that a pass leaves without a gradient: refused, detected in each pass, or fixed by the first one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "src/reduce/passes/gradient_owner.h"

namespace lockstep {

// How a pass treats parameters that it leaves without a gradient: see DistributedDataParallelOptions.
enum class MissingPolicy { kRefuse, kFindUnused, kStaticGraph };
MissingPolicy missing_policy(bool find_unused_parameters, bool static_graph);

class MissingGradients {
 public:
  // `wrapper` names the wrapper in messages. The references must outlive it; `owner` is first used by settle().
  MissingGradients(ProcessGroup& group, const char* wrapper, GradientOwner& owner, MissingPolicy policy)
      : group_(group), wrapper_(wrapper), owner_(owner), policy_(policy) {}

  // Called at the end of a pass, with all buckets reduced. `missing` has the indices of the parameters without a
  // gradient on this rank. Those that other ranks have now hold the average. Ends the group and throws InvalidArgument
  // for those that may not be missing. Frozen ones never count. `step` is for messages and counts from 1.
  void settle(const std::vector<std::size_t>& missing, std::uint64_t step);

  // The same for a rank without data, which takes part in the others' pass and misses none of its own gradients.
  void follow(const std::vector<std::size_t>& missing);

  // The parameters that had a gradient on no rank in that pass, including frozen ones.
  const std::vector<std::size_t>& unused() const { return unused_; }

  bool asks_each_pass() const { return policy_ == MissingPolicy::kFindUnused; }

 private:
  void refuse(std::uint64_t step);
  void drop_frozen(const std::vector<std::size_t>& missing);
  void take_what_others_have(bool ask);
  void compare_with_first(std::uint64_t step);

  ProcessGroup& group_;
  const char* const wrapper_;
  GradientOwner& owner_;
  const MissingPolicy policy_;
  std::vector<std::size_t> missing_;  // of this pass, without frozen ones
  std::vector<std::size_t> unused_;
  std::vector<std::uint8_t> used_;                 // one bit per parameter: whether any rank has its gradient
  std::optional<std::vector<std::size_t>> fixed_;  // static graph: missing_ of the first pass
};

}  // namespace lockstep

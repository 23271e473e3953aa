// The parameters that a pass leaves without a gradient: refused, found out each pass, or fixed by the first one.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/ddp_options.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

bool wants_and_has_grad(const Tensor& parameter);  // a frozen one has none

class MissingGradients {
 public:
  // The references must outlive it.
  MissingGradients(ProcessGroup& group, const std::vector<NamedTensor>& parameters,
                   const DistributedDataParallelOptions& options);

  // At the end of a pass, all buckets reduced: `missing` are the indices of the parameters whose gradients never came
  // on this rank. Those that other ranks have hold the average from now on. Throws InvalidArgument, after ending the
  // group, for those that may not be missing. Frozen ones never count. `step` is for messages, from 1.
  void settle(const std::vector<std::size_t>& missing, std::uint64_t step);

  // The same for a rank without data, which takes part in the others' pass: none of its own is missing.
  void follow(const std::vector<std::size_t>& missing);

  // Of that pass: the parameters whose gradients came on no rank, frozen ones among them.
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
  std::vector<std::size_t> missing_;  // of this pass, frozen ones left out
  std::vector<std::size_t> unused_;
  std::vector<std::uint8_t> used_;                 // a bit a parameter: does any rank have its gradient
  std::optional<std::vector<std::size_t>> fixed_;  // static graph: missing_ of the first pass
};

}  // namespace lockstep

#include "src/reduce/passes/missing_gradients.h"

#include <algorithm>
#include <string>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "src/core/base/message_text.h"

namespace lockstep {

namespace {

constexpr std::size_t kBits = 8;  // per element of used_

}  // namespace

MissingPolicy missing_policy(bool find_unused_parameters, bool static_graph) {
  if (static_graph) return MissingPolicy::kStaticGraph;
  return find_unused_parameters ? MissingPolicy::kFindUnused : MissingPolicy::kRefuse;
}

void MissingGradients::settle(const std::vector<std::size_t>& missing, std::uint64_t step) {
  drop_frozen(missing);
  if (policy_ == MissingPolicy::kRefuse) {
    if (!missing_.empty()) refuse(step);
  } else if (policy_ == MissingPolicy::kFindUnused) {
    take_what_others_have(true);
  } else if (fixed_) {
    compare_with_first(step);
    take_what_others_have(false);
  } else {
    fixed_ = missing_;
    take_what_others_have(true);
  }
}

void MissingGradients::follow(const std::vector<std::size_t>& missing) {
  drop_frozen(missing);
  if (policy_ == MissingPolicy::kFindUnused) return take_what_others_have(true);
  for (const std::size_t i : missing_) owner_.take_average(i);
}

void MissingGradients::drop_frozen(const std::vector<std::size_t>& missing) {
  missing_.clear();
  unused_.clear();
  for (const std::size_t i : missing) (owner_.requires_grad(i) ? missing_ : unused_).push_back(i);
}

void MissingGradients::refuse(std::uint64_t step) {
  std::vector<std::string> names;
  for (const std::size_t i : missing_) names.push_back(owner_.name(i));
  abort_and_throw(
      group_,
      fmt::format(
          "{}: rank {}, step {}: backward did not reach {} of {} parameters: {}. Use them in "
          "forward() and the loss, freeze them before the module is wrapped, or set .find_unused_parameters = true, "
          "or .static_graph = true if they are the same in each step",
          wrapper_, group_.rank(), step, names.size(), owner_.count(), quoted(names)));
}

// Gives parameters that other ranks have used the average. If not `ask`, uses the ranks' answers from the first pass.
void MissingGradients::take_what_others_have(bool ask) {
  if (ask) {
    used_.resize(owner_.count() / kBits + 1);
    std::fill(used_.begin(), used_.end(), std::uint8_t{0xff});
    for (const std::size_t i : missing_)
      used_[i / kBits] = static_cast<std::uint8_t>(used_[i / kBits] & ~(1U << (i % kBits)));
    group_.all_reduce(std::span(used_), ReduceOp::kBitOr, {.purpose = {"used parameters"}});
  }
  for (const std::size_t i : missing_)
    if ((used_[i / kBits] >> (i % kBits) & 1) != 0)
      owner_.take_average(i);
    else
      unused_.push_back(i);
}

void MissingGradients::compare_with_first(std::uint64_t step) {
  std::vector<std::string> gone, come;
  for (const std::size_t i : missing_)
    if (!std::binary_search(fixed_->begin(), fixed_->end(), i)) gone.push_back(owner_.name(i));
  for (const std::size_t i : *fixed_)
    if (owner_.requires_grad(i) && !std::binary_search(missing_.begin(), missing_.end(), i))
      come.push_back(owner_.name(i));
  if (gone.empty() && come.empty()) return;
  std::string difference;
  if (!gone.empty()) difference += fmt::format("did not reach {}", quoted(gone));
  if (!come.empty()) difference += fmt::format("{}reached {}", difference.empty() ? "" : " and ", quoted(come));
  abort_and_throw(group_,
                  fmt::format("{}: rank {}, step {}: backward {}, unlike in step 1, and static_graph says "
                              "that each step uses the same parameters: set .find_unused_parameters = true instead",
                              wrapper_, group_.rank(), step, difference));
}

}  // namespace lockstep

#include "src/reduce/passes/nonfinite_steps.h"

#include <span>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/core/base/message_text.h"

namespace lockstep {

const char* name_of(OnNonfiniteGradient choice) {
  return choice == OnNonfiniteGradient::kIgnore  ? "kIgnore"
         : choice == OnNonfiniteGradient::kThrow ? "kThrow"
                                                 : "kSkipStep";
}

NonfiniteSteps::NonfiniteSteps(ProcessGroup& group, const char* wrapper, GradientOwner& owner,
                               OnNonfiniteGradient choice, CommHook hook)
    : group_(group), wrapper_(wrapper), owner_(owner), choice_(choice), hook_(std::move(hook)) {}

// The error of a gradient with NaN is NaN and would be added to the next one.
void NonfiniteSteps::check_hook() const {
  if (!hook_ || choice_ != OnNonfiniteGradient::kSkipStep) return;
  for (const HookState& state : hook_->state())
    if (state.count > 0 && state.dtype == DType::kFloat32)
      throw InvalidArgument(
          "{}: on_nonfinite_gradient kSkipStep cannot be combined with the comm_hook {}: the error that it keeps of a "
          "NaN gradient ('{}') would corrupt all later ones: use kThrow, or a hook without such state (bf16, fp16, "
          "int8)",
          wrapper_, hook_->describe(), state.name);
}

bool NonfiniteSteps::is_any(bool is_here) const {
  auto is_bad = static_cast<std::uint8_t>(is_here);
  if (hook_) group_.all_reduce(std::span(&is_bad, 1), ReduceOp::kBitOr, {.purpose = {"finite gradients"}});
  return is_bad != 0;
}

std::string NonfiniteSteps::report(const std::vector<std::uint8_t>& mine, std::uint64_t step) const {
  const std::size_t count = mine.size(), ranks = static_cast<std::size_t>(group_.world_size());
  std::vector<std::uint8_t> all(ranks * count), anywhere(count);
  group_.all_gather(mine.data(), all.data(), count, DType::kUInt8, {.purpose = {"infinite gradients"}});
  std::vector<std::string> where;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < count; ++i) {
      anywhere[i] = static_cast<std::uint8_t>(anywhere[i] | all[rank * count + i]);
      if ((all[rank * count + i] & kOwnIsBad) != 0) names.push_back(owner_.name(i));
    }
    if (!names.empty()) where.push_back(fmt::format("on rank {}: {}", rank, quoted(names)));
  }
  std::vector<std::string> names;  // finite on each rank, but not in the sum
  for (std::size_t i = 0; i < count; ++i)
    if (anywhere[i] == kAverageIsBad) names.push_back(owner_.name(i));
  if (!names.empty()) where.push_back(fmt::format("only in the average, which overflowed: {}", quoted(names)));
  return fmt::format("{}: step {}: gradients are infinite or NaN, {}", wrapper_, step, joined(where, "; "));
}

void NonfiniteSteps::stop(std::string report, bool lowers_scale) {
  if (choice_ == OnNonfiniteGradient::kThrow)
    throw Error(
        "{}. Check the samples and the loss of that rank in this step, clip the gradients, or lower the learning "
        "rate; .on_nonfinite_gradient = OnNonfiniteGradient::kSkipStep skips such steps",
        report);
  last_skipped_ = std::move(report);
  ++skipped_steps_;
  if (group_.rank() != 0) return;
  if (lowers_scale)
    log::info("{}: the step is skipped on all ranks, and the loss scale is lowered", last_skipped_);
  else
    log::warn("{}: the step is skipped on all ranks", last_skipped_);
}

}  // namespace lockstep

// Steps with gradients that are infinite or NaN: which ranks and parameters had them, and what happens then.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/reduce/comm_hook.h"
#include "lockstep/reduce/pass_options.h"
#include "src/reduce/passes/gradient_owner.h"

namespace lockstep {

const char* name_of(OnNonfiniteGradient choice);

// A gradient's state on this rank, by parameter.
inline constexpr unsigned kOwnIsBad = 1, kAverageIsBad = 2;

class NonfiniteSteps {
 public:
  // `wrapper` names the wrapper in messages. The references must outlive it; `owner` is first used by report().
  NonfiniteSteps(ProcessGroup& group, const char* wrapper, GradientOwner& owner, OnNonfiniteGradient choice,
                 CommHook hook);

  OnNonfiniteGradient choice() const { return choice_; }
  bool can_stop() const { return choice_ != OnNonfiniteGradient::kIgnore; }
  // Throws InvalidArgument for a comm hook whose state a skipped step would corrupt.
  void check_hook() const;
  // Collective if there is a comm hook, after which the ranks may have different averages. Returns whether any rank has
  // a bad one; without a hook, all have the same.
  bool is_any(bool is_here) const;
  // Collective: the ranks exchange which of them has which bad gradients, each a sum of the bits above.
  std::string report(const std::vector<std::uint8_t>& mine, std::uint64_t step) const;
  // Throws Error with the report, or counts the step as skipped and returns. `lowers_scale`: normal while a loss scaler
  // adjusts its scale.
  void stop(std::string report, bool lowers_scale);

  std::int64_t skipped_steps() const { return skipped_steps_; }
  const std::string& last_skipped() const { return last_skipped_; }

 private:
  ProcessGroup& group_;
  const char* const wrapper_;
  const GradientOwner& owner_;
  const OnNonfiniteGradient choice_;
  const CommHook hook_;
  std::int64_t skipped_steps_ = 0;
  std::string last_skipped_;
};

}  // namespace lockstep

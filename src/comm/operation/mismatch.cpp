#include "src/comm/operation/mismatch.h"

#include <fmt/format.h>

#include <bit>
#include <utility>

namespace lockstep {

namespace {

constexpr const char* kSkipped =
    "Each rank must run the same passes and steps: omit a batch on all ranks or on none (join() is for unequal "
    "numbers of batches), and let each loss reach the model";
constexpr const char* kUnequalRates =
    "Give all ranks the same rate: average a metric over the ranks before a schedule follows it";
constexpr const char* kUnequalSets =
    "Freeze and unfreeze the same parameters on all ranks, before the module is wrapped";
constexpr const char* kParted =
    "Load or change weights on all ranks alike, or before the module is wrapped, whose weights rank 0 then sends to "
    "all; name those that are each rank's own in ignored_parameters";

// The differences between two ranks' positions, and advice for the first of them.
class PassDifference {
 public:
  PassDifference(const CallOfRank& one, const CallOfRank& other) : one_(one), other_(other) {}

  std::string text() {
    const PassState &a = one_.pass, &b = other_.pass;
    if ((a.pass == 0) != (b.pass == 0)) return only_one();
    add("wrapper", a.wrapper, b.wrapper, kSkipped);
    add("backward pass", a.pass, b.pass, kSkipped);
    add("batch of the loader", a.batch, b.batch, kSkipped);
    add("steps begun by zero_grad()", a.begun, b.begun, kSkipped);
    add("optimizer steps before it", a.updates, b.updates, kSkipped);
    if (std::bit_cast<std::uint32_t>(a.lr) != std::bit_cast<std::uint32_t>(b.lr))
      add("learning rate", a.lr, b.lr, kUnequalRates);
    else if (a.rates != b.rates)
      add("learning rates of all groups, as a hash", fmt::format("{:08x}", a.rates), fmt::format("{:08x}", b.rates),
          kUnequalRates);
    if (a.trained != b.trained)
      add("trained parameters", a.trained, b.trained, kUnequalSets);
    else if (a.trained_hash != b.trained_hash)
      add("set of trained parameters, as a hash", fmt::format("{:08x}", a.trained_hash),
          fmt::format("{:08x}", b.trained_hash), kUnequalSets);
    if (a.weights != b.weights)
      add("weights, as a hash of some", fmt::format("{:08x}", a.weights), fmt::format("{:08x}", b.weights), kParted);
    if (advice_ == nullptr) add("earlier passes, as a hash", a.earlier, b.earlier, kSkipped);
    return fmt::format("the ranks are out of step in the backward pass of step {}: {}. {}.", a.pass, differences_,
                       advice_);
  }

 private:
  std::string only_one() const {
    const bool is_first = one_.pass.pass != 0;
    const CallOfRank &in_pass = is_first ? one_ : other_, &without = is_first ? other_ : one_;
    return fmt::format("the ranks are out of step: rank {} is in the backward pass of step {}, rank {} is in none. {}.",
                       in_pass.rank, in_pass.pass.pass, without.rank, kSkipped);
  }

  template <typename Value> void add(const char* what, const Value& mine, const Value& theirs, const char* advice) {
    if (mine == theirs) return;
    differences_ += fmt::format("{}{}: {} on rank {}, {} on rank {}", differences_.empty() ? "" : "; ", what, mine,
                                one_.rank, theirs, other_.rank);
    if (advice_ == nullptr) advice_ = advice;
  }

  const CallOfRank &one_, &other_;
  std::string differences_;
  const char* advice_ = nullptr;
};

// A rank with fewer steps than the others makes another call while they go on.
std::string text_of(const CallOfRank& call) {
  return fmt::format("rank {}: {}{}", call.rank, describe(call.signature, call.purpose),
                     call.pass.pass != 0 ? fmt::format(", the first of step {}'s backward pass", call.pass.pass) : "");
}

}  // namespace

std::string describe_mismatch(const CallOfRank& one, const CallOfRank& other) {
  if (other.rank < one.rank) return describe_mismatch(other, one);
  Signature same = other.signature;
  same.pass = one.signature.pass;
  if (same == one.signature && one.signature.pass != other.signature.pass) return PassDifference(one, other).text();
  return fmt::format("the ranks make different calls: {}; {}. All ranks must make the same calls in the same order.",
                     text_of(one), text_of(other));
}

}  // namespace lockstep

#include "src/reduce/passes/shares.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"

namespace lockstep {

namespace {

constexpr const char* kActs[] = {"has no data left", "begins a forward that sends buffers", "begins a backward",
                                 "begins a backward with a weight", "lets the error of its last backward end join()"};

double number_of(Shares::Act act) { return static_cast<double>(act); }

}  // namespace

Shares::Shares(ProcessGroup& group, const char* wrapper)
    : group_(group), wrapper_(wrapper), all_(static_cast<std::size_t>(group.world_size())) {}

Shares::~Shares() {
  try {
    work_.wait();  // it uses their memory
  } catch (const std::exception& error) {
    log::debug("{}: dropped an exchange of weights: {}", wrapper_, error.what());
  }
}

void Shares::begin_join(const JoinOptions& options) {
  if (join_) throw InvalidArgument("{}::join: called inside join()", wrapper_);
  check_same_on_all_ranks(group_, fmt::format("{}::join", wrapper_),
                          {fmt::format("divide_by_initial_world_size {}", options.divide_by_initial_world_size),
                           fmt::format("throw_on_early_termination {}", options.throw_on_early_termination),
                           options.after_step ? "after_step" : "no after_step"},
                          "have different options");
  join_ = options;
  was_uneven_ = has_ended_join_ = false;
}

void Shares::begin_epoch(std::int64_t steps) const {
  if (join_)
    throw InvalidArgument(
        "{}::begin_epoch: called in join(), where ranks have different numbers of steps and make no calls except the "
        "wrapper's passes: call it before join(), or not at all",
        wrapper_);
  std::vector<std::int64_t> all(static_cast<std::size_t>(group_.world_size()));
  group_.all_gather(&steps, all.data(), 1, DType::kInt64, {.purpose = {"steps of an epoch"}});
  std::map<std::int64_t, std::string> ranks_by_steps;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    std::string& ranks = ranks_by_steps[all[rank]];
    ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
  }
  if (ranks_by_steps.size() == 1) return;
  std::string text;
  for (const auto& [number, ranks] : ranks_by_steps)
    text += fmt::format("{}{} on rank {}", text.empty() ? "" : "; ", number, ranks);
  throw MismatchError(
      "{}::begin_epoch: the ranks will run different numbers of steps: {}. Give each the same number of batches "
      "(DistributedSampler does), or train in join()",
      wrapper_, text);
}

void Shares::exchange(Act act, std::uint64_t step) {
  if (join_ && has_ended_join_)
    throw InvalidArgument("{}::join: an error of step {} has ended it on all ranks: do not catch it in `train`",
                          wrapper_, step_);
  std::exchange(work_, {}).wait();  // of a pass that ended with an exception
  own_ = {number_of(act), act == Act::kNothing ? 0 : weight_.value_or(1)};
  has_data_ = act != Act::kNothing;
  step_ = step;
  exchanging_ = true;
  work_ = group_.all_gather_async(&own_, all_.data(), 2, DType::kFloat64, {.purpose = {"weights"}});
}

Shares::Act Shares::read() {
  exchanging_ = false;
  std::exchange(work_, {}).wait();
  has_ended_join_ = join_.has_value();  // unless this function returns; every rank computes the same from the exchange
  int first = -1, first_without = -1;
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    const Status& status = all_[static_cast<std::size_t>(rank)];
    if (status.act == number_of(Act::kNothing)) {
      if (first_without < 0) first_without = rank;
      continue;
    }
    if (first < 0) first = rank;
    const double expected = all_[static_cast<std::size_t>(first)].act;
    if (status.act != expected)
      throw MismatchError("{}::join: step {}: rank {} {}, rank {} {}: ranks with data must do the same", wrapper_,
                          step_, first, kActs[static_cast<int>(expected)], rank, kActs[static_cast<int>(status.act)]);
  }
  const bool all_have_ended = first < 0;
  if (!all_have_ended) first_with_data_ = first;
  was_uneven_ = was_uneven_ || (!all_have_ended && first_without >= 0);
  const auto act = all_have_ended ? Act::kNothing : static_cast<Act>(all_[static_cast<std::size_t>(first)].act);
  if (act == Act::kThrow) return act;
  if (!all_have_ended && first_without >= 0 && join_ && join_->throw_on_early_termination)
    throw Error(
        "{}::join: step {}: rank {} has no data left, rank {} has, and throw_on_early_termination is set: give the "
        "ranks equal numbers of batches, or do not set it",
        wrapper_, step_, first_without, first);
  has_ended_join_ = false;
  return act;
}

Shares::Act Shares::announce(Act own, std::uint64_t step) {
  exchange(own, step);
  return read();
}

void Shares::begin_pass(std::uint64_t step) {
  exchanging_ = false;  // of a pass that ended with an exception
  if (!weight_ && !join_) return;
  exchange(weight_ ? Act::kWeightedPass : Act::kPass, step);
  weight_.reset();  // it applies to this pass only, however it ends
}

void Shares::check_weights() const {
  for (std::size_t rank = 0; rank < all_.size(); ++rank)
    if (const auto& [act, weight] = all_[rank];
        act != number_of(Act::kNothing) && !(weight > 0 && std::isfinite(weight)))
      throw InvalidArgument(
          "{}: step {}: rank {} set the weight {}, expected the number of its samples, above 0: a rank without "
          "samples takes part with join()",
          wrapper_, step_, rank, weight);
}

// Buckets are averaged over all ranks. For the mean by weights, rank r's values are multiplied by weight * ranks / sum
// of weights. Ranks with equal weights have the factor 1, and so the bits of the plain mean.
float Shares::factor() {
  if (exchanging_)
    read();
  else if (!join_)
    return 1;
  bool weighted = false;
  check_weights();
  double smallest = INFINITY, largest = 0;
  int with_data = 0;
  for (const auto& [act, weight] : all_) {
    if (act == number_of(Act::kNothing)) continue;
    weighted = act == number_of(Act::kWeightedPass);
    smallest = std::min(smallest, weight);
    largest = std::max(largest, weight);
    ++with_data;
  }
  if (!has_data_) return 1;  // its values are zeros
  const bool are_equal = smallest == largest;
  if (are_equal && (with_data == group_.world_size() || (!weighted && join_->divide_by_initial_world_size))) return 1;
  const double ranks = group_.world_size();
  if (are_equal) return static_cast<float>(ranks / with_data);
  int exponent =
      0;  // of the largest weight: scaling by a power of two prevents overflow and does not change the rounding
  std::frexp(largest, &exponent);
  double sum = 0;
  for (const auto& [act, weight] : all_)
    if (act != number_of(Act::kNothing)) sum += std::ldexp(weight, -exponent);
  return static_cast<float>(std::ldexp(own_.weight, -exponent) * ranks / sum);
}

}  // namespace lockstep

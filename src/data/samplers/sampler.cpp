#include "lockstep/data/sampler.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/data/samplers/check_place.h"

namespace lockstep::data {

namespace {

void append(const SampleOrder& all, std::int64_t position, SampleOrder& to) {
  const auto at = static_cast<std::size_t>(position);
  if (all.batch_ends.empty()) {
    to.indices.push_back(all.indices[at]);
    return;
  }
  const auto begin = at == 0 ? 0 : all.batch_ends[at - 1];
  to.indices.insert(to.indices.end(), all.indices.begin() + begin, all.indices.begin() + all.batch_ends[at]);
  to.batch_ends.push_back(static_cast<std::int64_t>(to.indices.size()));
}

}  // namespace

const char* name_of(Remainder remainder) {
  return remainder == Remainder::kPad ? "pad" : remainder == Remainder::kDrop ? "drop" : "exact";
}

Sampler::Sampler(const char* kind, std::int64_t set_size, const Place& place, std::uint64_t seed, Remainder remainder,
                 const std::string& options, bool makes_batches)
    : kind_(kind), place_(place), remainder_(remainder), makes_batches_(makes_batches) {
  constexpr std::int64_t kLargest = std::numeric_limits<std::uint32_t>::max();
  check_place(kind, place);
  if (set_size < 1) throw InvalidArgument("{}: the set has {} samples, but at least one is needed", kind, set_size);
  if (set_size > kLargest)
    throw InvalidArgument("{}: the set has {} samples, but at most {} can be shuffled", kind, set_size, kLargest);
  state_ = {seed, 0, 0, set_size, fmt::format("{}({}, remainder {})", kind, options, name_of(remainder))};
}

void Sampler::check_not_all_dropped() const {
  if (total() == 0)
    throw InvalidArgument("{}: got {} {} for {} ranks: dropping the remainder leaves none", kind_, whole_size(),
                          makes_batches_ ? "batches" : "samples", place_.world_size);
}

void Sampler::set_epoch(std::int64_t epoch) {
  if (epoch < 0) throw InvalidArgument("{}: epoch {} is negative", kind_, epoch);
  state_.epoch = epoch;
  state_.consumed = 0;
  ++jumps_;
  was_passed_ = false;
}

// A loop that forgets set_epoch() trains on one order, with one augmentation, in every epoch.
void Sampler::begin_pass() const {
  if (!std::exchange(was_passed_, false) || std::exchange(has_warned_, true)) return;
  if (whole_order(state_.seed, state_.epoch).indices == whole_order(state_.seed, state_.epoch + 1).indices) return;
  log::warn(
      "{}: rank {}: a second pass begins in epoch {} with the order and augmentation of the first: call "
      "set_epoch(epoch) "
      "before each pass",
      kind_, place_.rank, state_.epoch);
}

std::int64_t Sampler::end_of_pass(std::int64_t consumed, std::int64_t whole) const {
  const std::int64_t ranks = place_.world_size, left = std::max<std::int64_t>(0, whole - consumed);
  switch (remainder_) {
    case Remainder::kPad: return consumed + (left + ranks - 1) / ranks * ranks;
    case Remainder::kDrop: return consumed + left / ranks * ranks;
    case Remainder::kExact: break;
  }
  return consumed + left;
}

// Positions c + r, c + r + n, c + r + 2n, ... below the end.
std::int64_t Sampler::size_of_pass(std::int64_t consumed) const {
  return (end_of_pass(consumed, whole_size()) - consumed - place_.rank + place_.world_size - 1) / place_.world_size;
}

std::int64_t Sampler::size() const { return size_of_pass(0); }
std::int64_t Sampler::total() const { return end_of_pass(0, whole_size()); }
std::int64_t Sampler::remaining() const { return size_of_pass(state_.consumed); }

SampleOrder Sampler::order() const {
  const SampleOrder all = whole_order(state_.seed, state_.epoch);
  const auto positions = static_cast<std::int64_t>(makes_batches_ ? all.batch_ends.size() : all.indices.size());
  const std::int64_t end = end_of_pass(state_.consumed, positions);
  SampleOrder mine;
  for (std::int64_t position = state_.consumed + place_.rank; position < end; position += place_.world_size)
    append(all, position % positions, mine);  // padding repeats the head
  return mine;
}

// Repeated padding does not count as positions, so "all consumed" is the same with any number of ranks.
SamplerState Sampler::state_at(std::int64_t consumed) const {
  SamplerState state = state_;
  state.consumed = std::min(consumed, whole_size());
  return state;
}

SamplerState Sampler::state() const { return state_at(state_.consumed); }

void Sampler::check(const SamplerState& state) const {
  if (state.set_size != 0 && state.set_size != set_size())
    throw InvalidArgument(
        "{}: rank {} cannot restore this state: its data set has {} samples, this sampler's has {}: use the data set "
        "of "
        "the run that saved the state, or begin an epoch with set_epoch()",
        kind_, place_.rank, state.set_size, set_size());
  if (!state.fingerprint.empty() && !state_.fingerprint.empty() && state.fingerprint != state_.fingerprint)
    throw InvalidArgument(
        "{}: rank {} cannot restore this state: it belongs to another data set of {} samples, with fingerprint {} "
        "instead "
        "of {}: use the data set of the run that saved the state, or begin an epoch with set_epoch()",
        kind_, place_.rank, set_size(), state.fingerprint, state_.fingerprint);
  if (!state.options.empty() && state.options != state_.options)
    throw InvalidArgument(
        "{}: rank {} cannot restore this state: it belongs to {}, but this sampler is {}: make it with the options of "
        "the run that saved the state, or begin an epoch with set_epoch()",
        kind_, place_.rank, state.options, state_.options);
  // Version 0.1 also counted repeated padding.
  const std::int64_t positions = state.epoch < 0 ? 0 : whole_size(state.seed, state.epoch);
  const std::int64_t most = state.set_size == 0 ? std::max(positions, end_of_pass(0, positions)) : positions;
  if (state.epoch < 0 || state.consumed < 0 || state.consumed > most)
    throw InvalidArgument(
        "{}: rank {} cannot resume after {} {} of epoch {}: epochs count from 0 and have {}: the state is damaged",
        kind_, place_.rank, state.consumed, makes_batches_ ? "batches" : "samples", state.epoch, most);
}

void Sampler::restore(const SamplerState& state) {
  check(state);
  state_.seed = state.seed;
  state_.epoch = state.epoch;
  state_.consumed = state.consumed;
  ++jumps_;
  was_passed_ = false;
}

}  // namespace lockstep::data

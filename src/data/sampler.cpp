#include "lockstep/data/sampler.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/tensor/random.h"

namespace lockstep::data {

namespace {

// The epoch's order of all samples, the same on all ranks (Fisher-Yates).
std::vector<std::int64_t> permutation(std::int64_t size, const SamplerState& state, bool shuffle) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  if (!shuffle) return order;
  Philox random(state.seed, random_stream(RandomUse::kOrder, static_cast<std::uint64_t>(state.epoch)));
  for (std::size_t left = order.size(); left > 1; --left) std::swap(order[left - 1], order[random.below(static_cast<std::uint32_t>(left))]);
  return order;
}

}  // namespace

DistributedSampler::DistributedSampler(std::int64_t size, const Place& place, const DistributedSamplerOptions& options)
    : size_(size), place_(place), options_(options), state_{options.seed, 0, 0} {
  if (size < 1) throw InvalidArgument("DistributedSampler: the set has {} samples, at least one is needed", size);
  if (size > std::numeric_limits<std::uint32_t>::max())
    throw InvalidArgument("DistributedSampler: {} samples, at most {} can be shuffled", size, std::numeric_limits<std::uint32_t>::max());
  if (options.remainder == Remainder::kDrop && size < place.world_size)
    throw InvalidArgument("DistributedSampler: {} samples for {} ranks: dropping the remainder leaves nothing", size, place.world_size);
}

void DistributedSampler::set_epoch(std::int64_t epoch) {
  if (epoch < 0) throw InvalidArgument("DistributedSampler: epoch {} is negative", epoch);
  state_.epoch = epoch;
  state_.consumed = 0;
}

std::int64_t DistributedSampler::total() const {
  const std::int64_t ranks = place_.world_size;
  switch (options_.remainder) {
    case Remainder::kPad:
      return (size_ + ranks - 1) / ranks * ranks;
    case Remainder::kDrop:
      return size_ / ranks * ranks;
    case Remainder::kExact:
      break;
  }
  return size_;
}

// Positions r, r + n, r + 2n, ... below total().
std::int64_t DistributedSampler::size() const { return (total() - place_.rank + place_.world_size - 1) / place_.world_size; }

std::vector<std::int64_t> DistributedSampler::indices() const {
  const std::vector<std::int64_t> order = permutation(size_, state_, options_.shuffle);
  const std::int64_t end = total();
  std::vector<std::int64_t> mine;
  for (std::int64_t position = state_.consumed + place_.rank; position < end; position += place_.world_size)
    mine.push_back(order[static_cast<std::size_t>(position % size_)]);  // padding repeats the head
  return mine;
}

void DistributedSampler::restore(const SamplerState& state) {
  if (state.epoch < 0 || state.consumed < 0 || state.consumed > total())
    throw InvalidArgument("DistributedSampler: cannot resume at sample {} of epoch {}: an epoch has {} samples", state.consumed,
                          state.epoch, total());
  if (state.consumed % place_.world_size != 0)
    throw InvalidArgument("DistributedSampler: cannot resume at sample {} with {} ranks: it is not between two steps of all ranks",
                          state.consumed, place_.world_size);
  state_ = state;
}

}  // namespace lockstep::data

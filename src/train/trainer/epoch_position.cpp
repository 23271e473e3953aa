#include "src/train/trainer/epoch_position.h"

#include <numeric>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::train {

EpochPosition position_of(const EpochSums& sums, std::span<Metric* const> metrics, EpochPosition begun,
                          ProcessGroup* group) {
  EpochPosition position = std::move(begun);
  position.epoch = sums.epoch;
  position.steps = sums.steps;
  position.samples = sums.samples;
  position.losses = {sums.losses};
  for (Metric* const metric : metrics) {
    const auto counts = metric->counts();
    position.counts.insert(position.counts.end(), counts.begin(), counts.end());
  }
  if (group == nullptr || group->world_size() == 1) return position;
  position.losses.resize(static_cast<std::size_t>(group->world_size()));
  group->all_gather(&sums.losses, position.losses.data(), 1, DType::kFloat64);
  position.counts.push_back(position.stops ? 1 : 0);  // so that one call is enough
  group->all_reduce(std::span(position.counts), ReduceOp::kSum);
  position.stops = position.counts.back() != 0;
  position.counts.pop_back();
  return position;
}

EpochSums sums_of(const EpochPosition& position, std::int64_t steps_per_epoch, const Place& place) {
  EpochSums sums{position.epoch, position.epoch * steps_per_epoch, position.steps, position.samples};
  const std::vector<double>& losses = position.losses;
  if (losses.size() == static_cast<std::size_t>(place.world_size))
    sums.losses = losses[static_cast<std::size_t>(place.rank)];
  else if (place.rank == 0 && !losses.empty())
    sums.losses = std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size()) *
                  static_cast<double>(place.world_size);
  return sums;
}

void check_counts(std::span<Metric* const> metrics, const std::vector<std::int64_t>& counts) {
  std::size_t needed = 0;
  for (Metric* const metric : metrics) needed += metric->counts().size();
  if (needed != counts.size())
    throw InvalidArgument(
        "Trainer::fit: the checkpoint, which was saved within an epoch, has {} counts of training metrics; this fit "
        "has {}: compile() with the same metrics, and set .training_metrics alike",
        counts.size(), needed);
}

void set_counts(std::span<Metric* const> metrics, const std::vector<std::int64_t>& counts, const Place& place) {
  if (place.rank != 0) return;
  auto next = counts.begin();
  for (Metric* const metric : metrics)
    for (std::int64_t& count : metric->counts()) count = *next++;
}

}  // namespace lockstep::train

// How far an epoch has come: what its steps have added up to, in a fit() and in a checkpoint that is saved within it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/place.h"
#include "lockstep/train/metrics.h"

namespace lockstep::train {

// On one rank.
struct EpochSums {
  std::int64_t epoch = -1, first = 0;   // first: counting all steps of this and earlier epochs
  std::int64_t steps = 0, samples = 0;  // samples: over all ranks
  double losses = 0;                    // of this rank's steps, each times the step's samples
};

// In a checkpoint.
struct EpochPosition {
  std::string set;     // the set, its batches and the steps per epoch, which a fit() must have that continues the epoch
  bool stops = false;  // Trainer::stop() has been called, on any rank
  std::int64_t epoch = 0, steps = 0, samples = 0;
  std::vector<double> losses = {};        // EpochSums::losses by rank
  std::vector<std::int64_t> counts = {};  // of the training metrics, one after the other, over all ranks
};

// `begun` has set and stops. Collective; null: one process.
EpochPosition position_of(const EpochSums& sums, std::span<Metric* const> metrics, EpochPosition begun,
                          ProcessGroup* group);

// Each rank takes its own losses, so that the epoch's loss gets the same bits as without interruption; with another
// number of ranks the first one takes the mean of all, times the ranks.
EpochSums sums_of(const EpochPosition& position, std::int64_t steps_per_epoch, const Place& place);

// Throws InvalidArgument for counts of other metrics.
void check_counts(std::span<Metric* const> metrics, const std::vector<std::int64_t>& counts);
// Counts are integers that are added over the ranks: the first rank takes all of them.
void set_counts(std::span<Metric* const> metrics, const std::vector<std::int64_t>& counts, const Place& place);

}  // namespace lockstep::train

// Samples drawn by weights: rare classes more often, doubtful samples less often.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/data/sampler.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

struct WeightedSamplerOptions {
  std::int64_t samples = 0;  // drawn in an epoch, over all ranks; 0: as many as the set has
  bool replacement = true;   // a sample may come several times in an epoch
  std::uint64_t seed = 0;
  Remainder remainder = Remainder::kPad;
};

// Each draw takes sample i with probability weight i / (the weights of all that can still be drawn): without
// replacement these are the samples not drawn yet in this epoch. The draws of an epoch are a pure function of (weights,
// seed, epoch), the same on any number of ranks, which share them out as a DistributedSampler does. An epoch of k draws
// from N samples takes O(N + k log N) time on each rank, and 16 bytes a sample.
class WeightedSampler : public Sampler {
 public:
  // One weight a sample, from 0 on, of any sum; they are copied. Throws InvalidArgument, with the first wrong one, for
  // weights that are negative, infinite or no numbers, all 0, or not `size` many; and, without replacement, for more
  // draws than there are weights above 0.
  WeightedSampler(std::int64_t size, std::span<const double> weights, const Place& place,
                  const WeightedSamplerOptions& options = {});

 private:
  SampleOrder whole_order(std::uint64_t seed, std::int64_t epoch) const override;
  std::int64_t whole_size(std::uint64_t, std::int64_t) const override { return samples_; }

  std::shared_ptr<const std::vector<double>> weights_;
  std::int64_t samples_;
  bool replacement_;
};

// A weight a sample that makes all classes equally frequent: 1 / (how many samples have this label). For labels of any
// values.
std::vector<double> balancing_weights(std::span<const std::int64_t> labels);

}  // namespace lockstep::data
#pragma GCC visibility pop

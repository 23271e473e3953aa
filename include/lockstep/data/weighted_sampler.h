// Samples drawn by weight: rare classes more often, doubtful samples less often.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/data/sampler.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

struct WeightedSamplerOptions {
  std::int64_t samples = 0;  // draws per epoch over all ranks; 0: as many as the set has samples
  bool replacement = true;   // a sample may be drawn several times in an epoch
  std::uint64_t seed = 0;
  Remainder remainder = Remainder::kPad;
};

// Each draw takes sample i with probability weight i / (sum of the weights that can still be drawn); without
// replacement these are the samples not yet drawn in this epoch. The draws of an epoch are a pure function of (weights,
// seed, epoch), the same with any number of ranks, which share them as with a DistributedSampler. An epoch of k draws
// from N samples takes O(N + k log N) time on each rank, and 16 bytes per sample.
class WeightedSampler : public Sampler {
 public:
  // `weights` has one weight of 0 or more per sample, with any sum, and is copied. Throws InvalidArgument, with the
  // first bad weight, when weights are negative, infinite or NaN, when all are 0 or their number is not `size`, and,
  // without replacement, for more draws than there are weights above 0.
  WeightedSampler(std::int64_t size, std::span<const double> weights, const Place& place,
                  const WeightedSamplerOptions& options = {});

 private:
  SampleOrder whole_order(std::uint64_t seed, std::int64_t epoch) const override;
  std::int64_t whole_size(std::uint64_t, std::int64_t) const override { return samples_; }

  std::shared_ptr<const std::vector<double>> weights_;
  std::int64_t samples_;
  bool replacement_;
};

// Returns weights that make all classes equally frequent: 1 / (number of samples with the same label). Labels may have
// any values.
std::vector<double> balancing_weights(std::span<const std::int64_t> labels);

}  // namespace lockstep::data
#pragma GCC visibility pop

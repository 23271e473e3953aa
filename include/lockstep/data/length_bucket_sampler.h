// Batches of samples of similar length, which need little padding.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/data/sampler.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

struct LengthBucketSamplerOptions {
  std::int64_t batch_size = 1;      // most samples in a batch
  std::int64_t max_tokens = 0;      // most tokens in a padded batch, its longest length x its samples; 0: no limit
  std::int64_t pool_batches = 100;  // samples are sorted in pools of this many batches; 0: the entire set is one pool
  bool shuffle = true;
  std::uint64_t seed = 0;
  Remainder remainder = Remainder::kPad;  // applies to batches
};

// The epoch's samples in random order are cut into pools. Each pool is sorted by length and cut into batches, and the
// batches of all pools come in random order. Larger pools need less padding but mix less. Without `shuffle`, pools
// follow the set's order and batches the pools' order. A batch ends at batch_size samples, before it would exceed
// max_tokens, and at its pool's end.
//
// The batches of an epoch are a pure function of (lengths, seed, epoch), the same with any number of ranks; rank r
// takes batches r, r + n, ... All ranks have equally many, unless `remainder` is kExact. Each sample is in one batch
// per epoch. Batches may differ in their number of samples: ddp.set_weight(samples) then gives the mean over all
// samples.
class LengthBucketSampler : public Sampler {
 public:
  // `lengths` has one length of 0 or more per sample and is copied. Throws InvalidArgument for negative lengths, for
  // another number of lengths than `size`, for a sample longer than max_tokens, and for options out of range.
  LengthBucketSampler(std::int64_t size, std::span<const std::int64_t> lengths, const Place& place,
                      const LengthBucketSamplerOptions& options = {});

 private:
  SampleOrder whole_order(std::uint64_t seed, std::int64_t epoch) const override;
  std::int64_t whole_size(std::uint64_t seed, std::int64_t epoch) const override;

  // The number of batches of the last epoch that was cut. Computing it takes a pass over the lengths, and state(),
  // remaining() and the loader need it often.
  struct Cut {
    std::uint64_t seed = 0;
    std::int64_t epoch = -1, batches = 0;
  };

  std::shared_ptr<const std::vector<std::int64_t>> lengths_;
  LengthBucketSamplerOptions options_;
  mutable Cut last_cut_ = {};
};

}  // namespace lockstep::data
#pragma GCC visibility pop

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
  std::int64_t batch_size = 1;  // samples of a batch, at most
  std::int64_t max_tokens = 0;  // of a padded batch, at most: its longest length x its samples; 0: no limit
  std::int64_t pool_batches =
      100;  // samples are sorted in pools of this many times batch_size; 0: the whole set is one pool
  bool shuffle = true;
  std::uint64_t seed = 0;
  Remainder remainder = Remainder::kPad;  // of batches
};

// The epoch's samples in random order are cut into pools; each is sorted by length and cut into batches, and the
// batches of all pools come in random order. Larger pools need less padding, and mix less. Without `shuffle` samples
// and batches come in their order but for the sorting. A batch ends at batch_size samples, before max_tokens would be
// passed, and at its pool's end.
//
// The batches of an epoch are a pure function of (lengths, seed, epoch), the same on any number of ranks; rank r takes
// batches r, r + n,
// ... All ranks have equally many, unless `remainder` is kExact. Each sample is in one batch of an epoch. Batches may
// differ in their number of samples: ddp.set_weight(samples) then makes the mean that of all samples.
class LengthBucketSampler : public Sampler {
 public:
  // One length a sample, 0 or more; they are copied. Throws InvalidArgument for lengths that are negative or not `size`
  // many, for a sample that is longer than max_tokens, and for options out of range.
  LengthBucketSampler(std::int64_t size, std::span<const std::int64_t> lengths, const Place& place,
                      const LengthBucketSamplerOptions& options = {});

 private:
  SampleOrder whole_order(std::uint64_t seed, std::int64_t epoch) const override;
  std::int64_t whole_size(std::uint64_t seed, std::int64_t epoch) const override;

  // How many batches an epoch has is known once it was cut: asked again and again by state(), remaining() and the
  // loader.
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

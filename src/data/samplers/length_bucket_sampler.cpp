#include "lockstep/data/length_bucket_sampler.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "lockstep/core/error.h"
#include "src/data/loading/fingerprint.h"
#include "src/data/samplers/shuffle.h"

namespace lockstep::data {

namespace {

using Lengths = std::vector<std::int64_t>;

// A range of positions in an order.
struct Range {
  std::int64_t begin, end;
};

void check_options(const LengthBucketSamplerOptions& options, const Place& place) {
  if (options.batch_size < 1 || options.max_tokens < 0 || options.pool_batches < 0)
    throw InvalidArgument(
        "LengthBucketSampler: rank {}: batch_size {}, max_tokens {} and pool_batches {}: expected a "
        "batch_size of 1 or more, and limits of 0 (no limit) or more",
        place.rank, options.batch_size, options.max_tokens, options.pool_batches);
}

void check_lengths(std::int64_t size, std::span<const std::int64_t> lengths, const LengthBucketSamplerOptions& options,
                   const Place& place) {
  if (static_cast<std::int64_t>(lengths.size()) != size)
    throw InvalidArgument("LengthBucketSampler: rank {}: {} lengths for {} samples: give one length for each sample",
                          place.rank, lengths.size(), size);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0)
      throw InvalidArgument("LengthBucketSampler: rank {}: the length of sample {} is {}, expected 0 or more",
                            place.rank, i, lengths[i]);
    if (options.max_tokens > 0 && lengths[i] > options.max_tokens)
      throw InvalidArgument(
          "LengthBucketSampler: rank {}: sample {} has {} tokens, but max_tokens is {}: cut the sample, "
          "leave it out, or raise the limit",
          place.rank, i, lengths[i], options.max_tokens);
  }
}

std::string text_of(std::span<const std::int64_t> lengths, const LengthBucketSamplerOptions& options) {
  return fmt::format("batch_size {}, max_tokens {}, pool_batches {}, shuffle {}, lengths {}", options.batch_size,
                     options.max_tokens, options.pool_batches, options.shuffle, fingerprint(lengths));
}

// Returns the samples per pool: `size` when the options set no limit or the product would overflow.
std::int64_t pool_of(std::int64_t size, const LengthBucketSamplerOptions& options) {
  return options.pool_batches == 0 || options.pool_batches > size / options.batch_size
             ? size
             : options.pool_batches * options.batch_size;
}

// Cuts a pool that is sorted by length. The last sample of a batch is its longest.
void cut(std::span<const std::int64_t> order, Range pool, const Lengths& lengths,
         const LengthBucketSamplerOptions& options, std::vector<Range>& batches) {
  for (std::int64_t begin = pool.begin, at = begin; at < pool.end; begin = at) {
    for (; at < pool.end && at - begin < options.batch_size; ++at) {
      const std::int64_t longest = lengths[static_cast<std::size_t>(order[static_cast<std::size_t>(at)])];
      if (options.max_tokens > 0 && longest > options.max_tokens / (at - begin + 1)) break;
    }
    batches.push_back({begin, at});
  }
}

}  // namespace

LengthBucketSampler::LengthBucketSampler(std::int64_t size, std::span<const std::int64_t> lengths, const Place& place,
                                         const LengthBucketSamplerOptions& options)
    : Sampler("LengthBucketSampler", size, place, options.seed, options.remainder, text_of(lengths, options),
              /*makes_batches=*/true),
      options_(options) {
  check_options(options, place);
  check_lengths(size, lengths, options, place);
  lengths_ = std::make_shared<const Lengths>(lengths.begin(), lengths.end());
  check_not_all_dropped();
}

SampleOrder LengthBucketSampler::whole_order(std::uint64_t seed, std::int64_t epoch) const {
  Philox random(seed, random_stream(RandomUse::kOrder, static_cast<std::uint64_t>(epoch)));
  std::vector<std::int64_t> samples(lengths_->size());
  std::iota(samples.begin(), samples.end(), 0);
  if (options_.shuffle) shuffle(samples, random);
  const std::int64_t size = set_size(), pool = pool_of(size, options_);
  const auto length = [this](std::int64_t sample) { return (*lengths_)[static_cast<std::size_t>(sample)]; };
  std::vector<Range> batches;
  for (std::int64_t begin = 0; begin < size; begin += pool) {
    const std::int64_t end = std::min(size, begin + pool);
    std::stable_sort(samples.begin() + begin, samples.begin() + end,
                     [&](std::int64_t a, std::int64_t b) { return length(a) < length(b); });
    cut(samples, {begin, end}, *lengths_, options_, batches);
  }
  if (options_.shuffle) shuffle(batches, random);
  SampleOrder order;
  order.indices.reserve(samples.size());
  for (const Range& batch : batches) {
    order.indices.insert(order.indices.end(), samples.begin() + batch.begin, samples.begin() + batch.end);
    order.batch_ends.push_back(static_cast<std::int64_t>(order.indices.size()));
  }
  last_cut_ = {seed, epoch, static_cast<std::int64_t>(order.batch_ends.size())};
  return order;
}

std::int64_t LengthBucketSampler::whole_size(std::uint64_t seed, std::int64_t epoch) const {
  if (options_.max_tokens == 0) return 1 + (set_size() - 1) / options_.batch_size;   // pools are full batches
  if (last_cut_.epoch != epoch || last_cut_.seed != seed) whole_order(seed, epoch);  // stores the number
  return last_cut_.batches;
}

}  // namespace lockstep::data

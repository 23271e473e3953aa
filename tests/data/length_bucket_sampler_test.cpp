#include "lockstep/data/length_bucket_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/loader.h"
#include "lockstep/tensor/random.h"
#include "tests/data/samplers_for_tests.h"
#include "tests/support/heap_count.h"
#include "tests/support/message_of.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Batches = std::vector<Indices>;

Batches batches_of(const Sampler& sampler) {
  const SampleOrder order = sampler.order();
  Batches batches;
  std::int64_t begin = 0;
  for (const std::int64_t end : order.batch_ends) {
    batches.emplace_back(order.indices.begin() + begin, order.indices.begin() + end);
    begin = end;
  }
  EXPECT_EQ(begin, static_cast<std::int64_t>(order.indices.size()));
  EXPECT_EQ(static_cast<std::int64_t>(batches.size()), sampler.remaining());
  return batches;
}

Indices random_lengths(std::int64_t size) {
  Philox random(7, 0);
  Indices lengths;
  for (std::int64_t i = 0; i < size; ++i) lengths.push_back(1 + random.below(100));
  return lengths;
}

std::int64_t padded(const Batches& batches, const Indices& lengths) {
  std::int64_t tokens = 0;
  for (const Indices& batch : batches) {
    std::int64_t longest = 0;
    for (const std::int64_t sample : batch) longest = std::max(longest, lengths[static_cast<std::size_t>(sample)]);
    tokens += longest * static_cast<std::int64_t>(batch.size());
  }
  return tokens;
}

TEST(LengthBucketSampler, SortsPoolsAndCutsThem) {
  const Indices lengths = {5, 1, 4, 2, 9, 8, 7, 6, 3, 3};
  const auto batches = [&](const LengthBucketSamplerOptions& options) {
    return batches_of(LengthBucketSampler(10, lengths, {}, options));
  };
  EXPECT_THAT(
      batches({.batch_size = 2, .pool_batches = 2, .shuffle = false}),
      ElementsAre(ElementsAre(1, 3), ElementsAre(2, 0), ElementsAre(7, 6), ElementsAre(5, 4), ElementsAre(8, 9)));
  EXPECT_THAT(batches({.batch_size = 4, .pool_batches = 0, .shuffle = false}),
              ElementsAre(ElementsAre(1, 3, 8, 9), ElementsAre(2, 0, 7, 6), ElementsAre(5, 4)));
  // 4 x 3, 2 x 5, 2 x 7, 1 x 8 and 1 x 9 tokens, at most 14 each.
  EXPECT_THAT(
      batches({.batch_size = 100, .max_tokens = 14, .shuffle = false}),
      ElementsAre(ElementsAre(1, 3, 8, 9), ElementsAre(2, 0), ElementsAre(7, 6), ElementsAre(5), ElementsAre(4)));
  EXPECT_THAT(batches({.batch_size = 3, .max_tokens = 14, .shuffle = false}),
              ElementsAre(ElementsAre(1, 3, 8), ElementsAre(9, 2), ElementsAre(0, 7), ElementsAre(6), ElementsAre(5),
                          ElementsAre(4)));
}

TEST(LengthBucketSampler, EachSampleOncePerEpochWithLittlePadding) {
  constexpr std::int64_t kSize = 1003;
  const Indices lengths = random_lengths(kSize);
  const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  LengthBucketSampler sampler(kSize, lengths, {}, {.batch_size = 8, .pool_batches = 20, .seed = 3});
  const Batches first = batches_of(sampler);
  EXPECT_EQ(sorted(flat(first)), range(kSize));
  EXPECT_EQ(first.size(), 126u);
  Batches by_order;
  for (std::int64_t i = 0; i < kSize; i += 8) {
    by_order.emplace_back();
    for (std::int64_t sample = i; sample < std::min(i + 8, kSize); ++sample) by_order.back().push_back(sample);
  }
  EXPECT_LT(padded(first, lengths) - tokens, (padded(by_order, lengths) - tokens) / 8) << "tokens of padding";
  sampler.set_epoch(1);
  const Batches second = batches_of(sampler);
  EXPECT_EQ(sorted(flat(second)), range(kSize));
  EXPECT_NE(second, first);
  sampler.set_epoch(0);
  EXPECT_EQ(batches_of(sampler), first);
}

TEST(LengthBucketSampler, AllRanksShareTheSameBatches) {
  const Indices lengths = random_lengths(217);
  const LengthBucketSamplerOptions options{.batch_size = 10, .max_tokens = 300, .pool_batches = 5, .seed = 3};
  for (const std::int64_t epoch : {0, 1, 2}) {
    LengthBucketSampler one(217, lengths, {}, options);
    one.set_epoch(epoch);
    const Batches alone = batches_of(one);
    EXPECT_EQ(sorted(flat(alone)), range(217));
    for (const Indices& batch : alone) {
      EXPECT_LE(batch.size(), 10u);
      EXPECT_LE(padded({batch}, lengths), 300);
    }
    for (const int ranks : {2, 3, 4})
      for (const Remainder remainder : {Remainder::kPad, Remainder::kDrop, Remainder::kExact}) {
        const std::size_t n = static_cast<std::size_t>(ranks), whole = alone.size();
        const std::size_t most = (whole + n - 1) / n;
        for (std::size_t rank = 0; rank < n; ++rank) {
          LengthBucketSamplerOptions mine = options;
          mine.remainder = remainder;
          LengthBucketSampler sampler(217, lengths, rank_of(static_cast<int>(rank), ranks), mine);
          sampler.set_epoch(epoch);
          const Batches got = batches_of(sampler);
          const std::size_t count = remainder == Remainder::kPad    ? most
                                    : remainder == Remainder::kDrop ? whole / n
                                                                    : (whole - rank + n - 1) / n;
          ASSERT_EQ(got.size(), count) << ranks << " " << name_of(remainder);
          EXPECT_EQ(static_cast<std::int64_t>(count), sampler.size());
          for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(got[i], alone[(i * n + rank) % whole]);
        }
      }
  }
}

// Sample i has lengths[i] tokens.
class Texts : public Dataset {
 public:
  explicit Texts(Indices lengths) : lengths_(std::move(lengths)) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(lengths_.size()); }
  Sample get(std::int64_t index, std::int64_t) const override {
    return {Tensor::zeros({lengths_[static_cast<std::size_t>(index)]}, DType::kInt64), scalar(index)};
  }

 private:
  Indices lengths_;
};

TEST(LengthBucketSampler, TheLoaderMakesItsBatches) {
  const Indices lengths = random_lengths(150);
  const Texts set(lengths);
  LengthBucketSampler sampler(150, lengths, rank_of(1, 2), {.batch_size = 8, .max_tokens = 400, .seed = 1});
  DataLoader loader(set, sampler, {.num_workers = 3, .collate = pad_collate()});
  for (const std::int64_t epoch : {0, 1}) {
    sampler.set_epoch(epoch);
    const Batches expected = batches_of(sampler);
    EXPECT_EQ(loader.batches(), static_cast<std::int64_t>(expected.size()));
    LengthBucketSampler alone(150, lengths, {}, {.batch_size = 8, .max_tokens = 400, .seed = 1});
    alone.set_epoch(epoch);
    const std::int64_t whole = alone.total();
    Batches got;
    for (auto& [tokens, numbers] : loader) {
      const auto samples = numbers.span<std::int64_t>();
      got.emplace_back(samples.begin(), samples.end());
      EXPECT_EQ(tokens.count(), padded({got.back()}, lengths));
      EXPECT_EQ(loader.state().consumed, std::min(2 * static_cast<std::int64_t>(got.size()), whole)) << "batches";
    }
    EXPECT_EQ(got, expected);
  }
  EXPECT_THAT(message_of([&] { DataLoader(set, sampler, {.batch_size = 8}); }),
              HasSubstr("rank 1: batch_size 8 and drop_last false do not go with a sampler that makes the batches"));
  EXPECT_THAT(message_of([&] { DataLoader(set, sampler, {.drop_last = true}); }),
              HasSubstr("batch_size 1 and drop_last true"));
}

// state(), remaining() and others are called in each step, so none of them may cut the epoch again.
TEST(LengthBucketSampler, CutsAnEpochOnce) {
  const Indices lengths = random_lengths(5000);
  LengthBucketSampler sampler(5000, lengths, rank_of(1, 2), {.batch_size = 16, .max_tokens = 900});
  const auto expect_no_cut = [&](std::int64_t remaining) {
    test_support::refuse_allocations_from(5000 * sizeof(std::int64_t));  // less than the samples' order takes
    const SamplerState state = sampler.state();
    const std::int64_t left = sampler.remaining();
    test_support::refuse_allocations_from(0);
    EXPECT_EQ(state.epoch, sampler.epoch());
    EXPECT_EQ(left, remaining);
  };
  std::int64_t batches = static_cast<std::int64_t>(batches_of(sampler).size());
  expect_no_cut(batches);
  sampler.advance(2);
  expect_no_cut(batches - 1);
  sampler.set_epoch(3);
  batches = static_cast<std::int64_t>(sampler.order().batch_ends.size());
  expect_no_cut(batches);
  LengthBucketSampler other(5000, lengths, rank_of(1, 2), {.batch_size = 16, .max_tokens = 900, .seed = 8});
  const SamplerState state = other.state();
  sampler.restore(state);  // has another seed
  expect_no_cut(other.remaining());
}

TEST(LengthBucketSampler, RefusesWrongLengthsAndOptions) {
  const auto refused = [](const Indices& lengths, const LengthBucketSamplerOptions& options = {}) {
    return message_of([&] { LengthBucketSampler(3, lengths, rank_of(1, 2), options); });
  };
  EXPECT_THAT(refused({1, 2}), HasSubstr("rank 1: 2 lengths for 3 samples: give one length for each sample"));
  EXPECT_THAT(refused({1, 2, 3, 4}), HasSubstr("4 lengths for 3 samples"));
  EXPECT_THAT(refused({1, -2, 3}), HasSubstr("the length of sample 1 is -2, expected 0 or more"));
  EXPECT_THAT(refused({1, 2, 30}, {.max_tokens = 29}),
              AllOf(HasSubstr("sample 2 has 30 tokens, but max_tokens is 29"),
                    HasSubstr("cut the sample, leave it out, or raise the limit")));
  EXPECT_THAT(refused({1, 2, 3}, {.batch_size = 0}), HasSubstr("batch_size 0, max_tokens 0 and pool_batches 100"));
  EXPECT_THAT(refused({1, 2, 3}, {.max_tokens = -1}), HasSubstr("max_tokens -1"));
  EXPECT_THAT(refused({1, 2, 3}, {.pool_batches = -1}), HasSubstr("pool_batches -1"));
  EXPECT_THAT(refused({1, 2, 3}, {.batch_size = 3, .remainder = Remainder::kDrop}), HasSubstr("1 batches for 2 ranks"));
  EXPECT_EQ(refused({0, 0, 0}, {.max_tokens = 1}), "nothing was thrown") << "samples without tokens";
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(
      refused({kLargest, 1, kLargest}, {.batch_size = kLargest, .max_tokens = kLargest, .pool_batches = kLargest}),
      "nothing was thrown");
}

}  // namespace
}  // namespace lockstep::data

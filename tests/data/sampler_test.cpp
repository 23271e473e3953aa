#include "lockstep/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "lockstep/core/error.h"
#include "lockstep/data/length_bucket_sampler.h"
#include "lockstep/data/weighted_sampler.h"
#include "tests/data/samplers_for_tests.h"

namespace lockstep::data {
namespace {

// A rank outside the world would read out of bounds, or skip samples silently.
TEST(SamplerPlaces, RefusesARankOutsideTheWorld) {
  const std::vector<double> weights(10, 1);
  const std::vector<std::int64_t> lengths(10, 1);
  for (const Place& place : {Place{0, 0}, Place{0, -1}, Place{-1, 2}, Place{5, 2}, Place{2, 2}, Place{.rank = 1}}) {
    EXPECT_THROW(DistributedSampler(10, place), InvalidArgument);
    EXPECT_THROW(WeightedSampler(10, weights, place), InvalidArgument);
    EXPECT_THROW(LengthBucketSampler(10, lengths, place), InvalidArgument);
  }
  try {
    DistributedSampler(10, {5, 2});
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("rank 5 does not exist in a world of 2: ranks count from 0 to 1"),
              std::string::npos)
        << error.what();
  }
}

Indices of_all_ranks(std::int64_t size, int ranks, const DistributedSamplerOptions& options, std::int64_t epoch = 0) {
  Indices all;
  for (int rank = 0; rank < ranks; ++rank) {
    DistributedSampler sampler(size, {rank, ranks, rank, ranks}, options);
    sampler.set_epoch(epoch);
    const Indices mine = sampler.indices();
    EXPECT_EQ(static_cast<std::int64_t>(mine.size()), sampler.size());
    all.insert(all.end(), mine.begin(), mine.end());
  }
  return all;
}

TEST(DistributedSampler, EverySampleOncePerEpochWhenRanksDivideTheSet) {
  for (const int ranks : {1, 2, 4, 6}) {
    Indices all = of_all_ranks(24, ranks, {.seed = 3});
    std::sort(all.begin(), all.end());
    Indices expected(24);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(all, expected) << ranks;
  }
}

TEST(DistributedSampler, PadsDropsOrIsExact) {
  EXPECT_EQ(of_all_ranks(10, 4, {.remainder = Remainder::kPad}).size(), 12u);
  EXPECT_EQ(of_all_ranks(10, 4, {.remainder = Remainder::kDrop}).size(), 8u);
  Indices exact = of_all_ranks(10, 4, {.remainder = Remainder::kExact});
  std::sort(exact.begin(), exact.end());
  EXPECT_EQ(exact, (Indices{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  // With more ranks than samples, padding repeats the set, and exact leaves some ranks without samples.
  EXPECT_EQ(of_all_ranks(2, 5, {.shuffle = false}), (Indices{0, 1, 0, 1, 0}));
  EXPECT_EQ(of_all_ranks(2, 5, {.shuffle = false, .remainder = Remainder::kExact}), (Indices{0, 1}));
  EXPECT_THROW(DistributedSampler(2, {0, 5, 0, 5}, {.remainder = Remainder::kDrop}), InvalidArgument);
  EXPECT_THROW(DistributedSampler(0, {}), InvalidArgument);
}

TEST(DistributedSampler, TheGlobalOrderDependsOnlyOnSeedAndEpoch) {
  // Interleaving two ranks gives the order of one.
  const auto interleaved = [](int ranks, std::uint64_t seed, std::int64_t epoch) {
    Indices order(100);
    for (int rank = 0; rank < ranks; ++rank) {
      DistributedSampler sampler(100, {rank, ranks, rank, ranks}, {.seed = seed});
      sampler.set_epoch(epoch);
      const Indices mine = sampler.indices();
      for (std::size_t i = 0; i < mine.size(); ++i)
        order[i * static_cast<std::size_t>(ranks) + static_cast<std::size_t>(rank)] = mine[i];
    }
    return order;
  };
  EXPECT_EQ(interleaved(1, 1, 0), interleaved(2, 1, 0));
  EXPECT_EQ(interleaved(1, 1, 5), interleaved(4, 1, 5));
  EXPECT_NE(interleaved(1, 1, 0), interleaved(1, 1, 1));
  EXPECT_NE(interleaved(1, 1, 0), interleaved(1, 2, 0));
}

TEST(DistributedSampler, ResumesInTheMiddleOfAnEpoch) {
  DistributedSampler sampler(40, {1, 2, 1, 2}, {.seed = 9});
  sampler.set_epoch(3);
  const Indices whole = sampler.indices();
  sampler.advance(16);  // a global batch
  const SamplerState state = sampler.state();
  DistributedSampler later(40, {1, 2, 1, 2}, {.seed = 1});
  later.restore(state);
  EXPECT_EQ(later.epoch(), 3);
  EXPECT_EQ(later.indices(), Indices(whole.begin() + 8, whole.end()));
  later.set_epoch(4);
  EXPECT_EQ(later.indices().size(), 20u);
  EXPECT_THROW(later.restore({9, 0, 41}), InvalidArgument);
  later.restore({9, 0, 3});  // of three ranks, for example
  EXPECT_EQ(later.remaining(), 19);
  EXPECT_EQ(later.indices().size(), 19u);
}

// A user-defined sampler: the set backwards, starting from another sample in each epoch.
class Backwards : public Sampler {
 public:
  Backwards(std::int64_t size, const Place& place, Remainder remainder)
      : Sampler("Backwards", size, place, 0, remainder, "step 1") {
    check_not_all_dropped();
  }

 private:
  SampleOrder whole_order(std::uint64_t, std::int64_t epoch) const override {
    SampleOrder order;
    for (std::int64_t i = set_size() - 1; i >= 0; --i) order.indices.push_back((i + epoch) % set_size());
    return order;
  }
  std::int64_t whole_size(std::uint64_t, std::int64_t) const override { return set_size(); }
};

TEST(Sampler, UserDefinedOnesAreSharedAndResumed) {
  Backwards sampler(7, rank_of(1, 2), Remainder::kPad);
  EXPECT_EQ(sampler.indices(), (Indices{5, 3, 1, 6})) << "the last one repeats the head";
  sampler.set_epoch(1);
  sampler.advance(4);
  EXPECT_EQ(sampler.state().options, "Backwards(step 1, remainder pad)");
  Backwards alone(7, {}, Remainder::kPad);
  alone.restore(sampler.state());
  EXPECT_EQ(alone.indices(), (Indices{3, 2, 1}));
  EXPECT_THROW(Backwards(1, rank_of(0, 2), Remainder::kDrop), InvalidArgument);
  EXPECT_THROW(alone.restore(DistributedSampler(7, {}).state()), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::data

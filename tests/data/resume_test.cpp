// Runs that stop in the middle of an epoch and continue with the same or another number of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/combine.h"
#include "lockstep/data/length_bucket_sampler.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/weighted_sampler.h"
#include "tests/data/samplers_for_tests.h"
#include "tests/support/message_of.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Remainder kRemainders[] = {Remainder::kPad, Remainder::kDrop, Remainder::kExact};

// Sample i is i.
class Numbers : public FixedShapeDataset {
 public:
  explicit Numbers(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  std::vector<TensorSpec> element_spec() const override { return {{{}, DType::kInt64}}; }
  void read(std::int64_t index, std::int64_t, const Row& row) const override { row.value<std::int64_t>(0) = index; }

 private:
  std::int64_t size_;
};

// The ranks of a job, run one after the other, each with its sampler and its loader.
template <typename AnySampler> struct Job {
  Job(const Dataset& set, const std::vector<AnySampler>& samplers_of_ranks, const DataLoaderOptions& options)
      : samplers(samplers_of_ranks) {
    for (const AnySampler& sampler : samplers) loaders.push_back(std::make_unique<DataLoader>(set, sampler, options));
  }

  // Takes at most `steps` batches on each rank, or all if -1, and returns all ranks' samples in the order of steps and
  // ranks. The loaders keep their positions.
  std::vector<Indices> take(std::int64_t steps = -1) {
    std::vector<Indices> batches;
    std::vector<DataLoader::Iterator> at;
    for (auto& loader : loaders) at.push_back(loader->begin());
    const auto all_ended = [&] {
      return std::all_of(at.begin(), at.end(), [](auto& each) { return each == std::default_sentinel; });
    };
    for (std::int64_t step = 0; step != steps && !all_ended(); ++step)
      for (auto& each : at) {
        if (step > 0) ++each;
        if (each == std::default_sentinel) continue;
        const auto values = (*each)[0].template span<std::int64_t>();
        batches.emplace_back(values.begin(), values.end());
      }
    return batches;
  }

  SamplerState state() const {
    const SamplerState state = loaders[0]->state();
    for (const auto& loader : loaders) EXPECT_EQ(loader->state(), state) << "all ranks have the same state";
    return state;
  }
  void restore(const SamplerState& state) {
    for (AnySampler& sampler : samplers) sampler.restore(state);
  }
  void set_epoch(std::int64_t epoch) {
    for (AnySampler& sampler : samplers) sampler.set_epoch(epoch);
  }

  std::vector<AnySampler> samplers;
  std::vector<std::unique_ptr<DataLoader>> loaders;
};

std::vector<DistributedSampler> samplers_of(std::int64_t size, int ranks, const DistributedSamplerOptions& options) {
  std::vector<DistributedSampler> samplers;
  for (int rank = 0; rank < ranks; ++rank) samplers.emplace_back(size, rank_of(rank, ranks), options);
  return samplers;
}

// Returns the samples that `ranks` ranks should read when the last `left` samples remain of an epoch with order
// `order`.
Indices expected_of(const Indices& order, std::int64_t left, int ranks, Remainder remainder) {
  const auto size = static_cast<std::int64_t>(order.size());
  Indices expected;
  std::int64_t end = size;
  if (remainder == Remainder::kPad) end += (ranks - left % ranks) % ranks;
  if (remainder == Remainder::kDrop) end -= left % ranks;
  for (std::int64_t i = size - left; i < end; ++i) expected.push_back(order[static_cast<std::size_t>(i % size)]);
  return sorted(expected);
}

// Nothing is skipped or repeated, except padding: the samples of the first ranks and then of the others follow the
// order that one rank has.
TEST(Resume, AnyNumberOfRanksContinuesWhereAnotherStopped) {
  constexpr std::int64_t kSize = 103, kBatch = 3, kSteps = 4;
  const Numbers set(kSize);
  const int changes[][2] = {{1, 1}, {1, 2}, {2, 1}, {4, 2}, {2, 4}, {3, 2}, {2, 3}};
  for (const bool shuffle : {true, false})
    for (const Remainder remainder : kRemainders)
      for (const auto& [before, after] : changes) {
        SCOPED_TRACE(fmt::format("shuffle {}, {}, {} to {} ranks", shuffle, name_of(remainder), before, after));
        const DistributedSamplerOptions options{.shuffle = shuffle, .seed = 5, .remainder = remainder};
        const DataLoaderOptions loading{.batch_size = kBatch, .prefetch = 3, .num_workers = 3};
        Job first(set, samplers_of(kSize, before, options), loading);
        first.set_epoch(2);
        DistributedSampler alone(kSize, {}, {.shuffle = shuffle, .seed = 5});
        alone.set_epoch(2);
        const Indices order = alone.indices();
        const Indices seen = flat(first.take(kSteps));
        const std::int64_t consumed = kSteps * kBatch * before;
        ASSERT_EQ(sorted(seen), sorted(Indices(order.begin(), order.begin() + consumed)));
        const SamplerState state = first.state();
        EXPECT_EQ(state.consumed, consumed) << "batches made ahead do not count";

        Job second(set, samplers_of(kSize, after, {.shuffle = shuffle, .remainder = remainder}), loading);
        second.restore(state);
        EXPECT_EQ(sorted(flat(second.take())), expected_of(order, kSize - consumed, after, remainder));

        // Continue through the next epoch with the saved seed.
        second.set_epoch(3);
        alone.set_epoch(3);
        EXPECT_EQ(sorted(flat(second.take())), expected_of(alone.indices(), kSize, after, remainder));
      }
}

// The same number of ranks gets exactly the batches of an uninterrupted run, over two epochs.
TEST(Resume, TheSameRanksGetTheBatchesOfARunThatDidNotStop) {
  const Numbers set(50);
  for (const Remainder remainder : kRemainders)
    for (const bool drop_last : {false, true})
      for (const std::int64_t stop : {0, 1, 5, 8, 9}) {
        SCOPED_TRACE(fmt::format("{}, drop_last {}, stop at {}", name_of(remainder), drop_last, stop));
        const DistributedSamplerOptions options{.seed = 8, .remainder = remainder};
        const DataLoaderOptions loading{.batch_size = 2, .drop_last = drop_last, .num_workers = 2};
        Job whole(set, samplers_of(50, 3, options), loading), first = Job(set, samplers_of(50, 3, options), loading),
                                                              second = Job(set, samplers_of(50, 3, options), loading);
        auto got = first.take(stop);
        second.restore(stop == 0 ? first.samplers[0].state() : first.loaders[0]->state());
        for (auto& batch : second.take()) got.push_back(batch);
        EXPECT_EQ(got, whole.take());
        whole.set_epoch(1);
        second.set_epoch(1);
        EXPECT_EQ(second.take(), whole.take());
      }
}

TEST(Resume, NothingRemainsAfterAFullPass) {
  const Numbers set(10);
  for (const Remainder remainder : {Remainder::kPad, Remainder::kExact}) {
    Job first(set, samplers_of(10, 4, {.remainder = remainder}), {.batch_size = 2});
    first.take();
    EXPECT_EQ(first.state().consumed, 10) << "padding is not counted";
    for (const int ranks : {1, 2, 3, 4}) {
      Job second(set, samplers_of(10, ranks, {.remainder = remainder}), {.batch_size = 2});
      second.restore(first.state());
      EXPECT_EQ(second.loaders[0]->batches(), 0);
      EXPECT_TRUE(second.take().empty());
    }
  }
}

// Changes the number of ranks twice within an epoch, with advance() and with the loader.
TEST(Resume, TwiceInAnEpoch) {
  const Numbers set(60);
  Indices seen;
  SamplerState state = samplers_of(60, 1, {.seed = 1})[0].state();
  for (const int ranks : {3, 4, 2}) {
    Job job(set, samplers_of(60, ranks, {.seed = 1}), {.batch_size = 3, .num_workers = 2});
    job.restore(state);
    for (const Indices& batch : job.take(ranks == 2 ? -1 : 2)) seen.insert(seen.end(), batch.begin(), batch.end());
    for (DistributedSampler& sampler : job.samplers) sampler.advance(2 * 3 * ranks);
    state = job.state();
    if (ranks != 2) {
      EXPECT_EQ(job.samplers[0].state(), state);
    }
  }
  EXPECT_EQ(state.consumed, 60);
  EXPECT_EQ(sorted(seen), range(60));
}

TEST(Resume, TheLoadersStateFollowsTheSampler) {
  const Numbers set(20);
  DistributedSampler sampler(20, {}, {.seed = 1});
  DataLoader loader(set, sampler, {.batch_size = 4});
  EXPECT_EQ(loader.state(), sampler.state()) << "before the first pass";
  std::int64_t consumed = 0;
  for ([[maybe_unused]] auto& batch : loader) EXPECT_EQ(loader.state().consumed, consumed += 4);
  EXPECT_EQ(loader.state().consumed, 20);
  sampler.set_epoch(1);
  EXPECT_EQ(loader.state(), sampler.state()) << "the sampler was set to an epoch";
  sampler.set_epoch(1);
  for ([[maybe_unused]] auto& batch : loader) break;
  EXPECT_EQ(loader.state().consumed, 4);
  sampler.set_epoch(1);
  EXPECT_EQ(loader.state().consumed, 0) << "it was set to the start of the same epoch";
}

TEST(Resume, ABatchThatFailedIsNotConsumed) {
  class Broken : public Numbers {
   public:
    using Numbers::Numbers;
    void read(std::int64_t index, std::int64_t epoch, const Row& row) const override {
      if (index == 9) throw FileError("broken");
      Numbers::read(index, epoch, row);
    }
  };
  const Broken set(20);
  const DistributedSampler sampler(20, {}, {.shuffle = false});
  DataLoader loader(set, sampler, {.batch_size = 4, .num_workers = 3});
  const std::string message = message_of([&] {
    for ([[maybe_unused]] auto& batch : loader) continue;
  });
  EXPECT_THAT(message, HasSubstr("sample 9 of epoch 0"));
  EXPECT_EQ(loader.state().consumed, 8);
}

TEST(Resume, AStateConvertsToJsonAndBack) {
  DistributedSampler sampler(20, {}, {.seed = ~std::uint64_t{0}});
  sampler.set_epoch(3);
  sampler.advance(8);
  const nlohmann::json json = sampler.state();
  const auto state = nlohmann::json::parse(json.dump()).get<SamplerState>();
  EXPECT_EQ(state, sampler.state());
  EXPECT_EQ(state.options, "DistributedSampler(shuffle true, remainder pad)");

  const auto broken = [&](const char* name, const nlohmann::json& value) {
    nlohmann::json other = json;
    if (value.is_null()) other.erase(name);
    if (!value.is_null()) other[name] = value;
    return message_of([&] { sampler.restore(other.get<SamplerState>()); });
  };
  EXPECT_THAT(broken("consumed", nullptr), HasSubstr("has no 'consumed'"));
  EXPECT_THAT(broken("seed", -1), HasSubstr("'seed' is -1 in the JSON, expected an integer of 0 or more"));
  EXPECT_THAT(broken("epoch", 1.5), HasSubstr("'epoch' is 1.5 in the JSON, expected an integer"));
  EXPECT_THAT(broken("options", 7), HasSubstr("'options' is 7 in the JSON, expected a string"));
  EXPECT_THAT(message_of([] { nlohmann::json("x").get<SamplerState>(); }), HasSubstr("expected an object"));
  EXPECT_EQ(broken("set_size", nullptr), "nothing was thrown") << "a checkpoint of version 0.1";
}

TEST(Resume, RefusesTheStateOfAnotherDataSetOfTheSameSize) {
  const auto set_of = [](std::int64_t size, std::int64_t odd) {
    std::vector<std::int64_t> values(static_cast<std::size_t>(size), 1);
    values.back() = odd;
    return TensorDataset({Tensor::from<std::int64_t>(values, {size})});
  };
  for (const std::int64_t size : {1, 2, 40, 1000}) {
    const TensorDataset mine = set_of(size, 2), same = set_of(size, 2), other = set_of(size, 3);
    DistributedSampler sampler(mine, {}), by_size(size, {});
    EXPECT_EQ(fingerprint_of(mine), fingerprint_of(same));
    EXPECT_EQ(sampler.state().fingerprint, fingerprint_of(mine));
    EXPECT_THAT(message_of([&] { sampler.restore(DistributedSampler(other, {}).state()); }),
                AllOf(HasSubstr("belongs to another data set of " + std::to_string(size) + " samples"),
                      HasSubstr(fingerprint_of(other))));
    for (const SamplerState& state : {DistributedSampler(same, {}).state(), by_size.state()})
      EXPECT_EQ(message_of([&] { sampler.restore(state); }), "nothing was thrown");
    EXPECT_EQ(message_of([&] { by_size.restore(sampler.state()); }), "nothing was thrown") << "it knows only the size";
  }
  EXPECT_NE(fingerprint_of(set_of(3, 1)), fingerprint_of(set_of(4, 1)));
  EXPECT_THAT(message_of([&] {
                DistributedSampler(set_of(2, 1), {0, 3, 0, 3}, {.remainder = Remainder::kDrop});
              }),
              HasSubstr("leaves none"));
}

TEST(Resume, RefusesTheStateOfAnotherSampler) {
  const Indices lengths(20, 3);
  const std::vector<double> weights(20, 1), others(20, 2);
  DistributedSampler sampler(20, rank_of(1, 2), {});
  const auto refused = [&](const SamplerState& state) { return message_of([&] { sampler.restore(state); }); };
  EXPECT_THAT(refused(DistributedSampler(21, {}, {}).state()),
              AllOf(HasSubstr("rank 1 cannot restore"), HasSubstr("data set has 21 samples, this sampler's has 20"),
                    HasSubstr("set_epoch()")));
  EXPECT_THAT(refused(DistributedSampler(20, {}, {.shuffle = false}).state()),
              AllOf(HasSubstr("belongs to DistributedSampler(shuffle false, remainder pad)"),
                    HasSubstr("is DistributedSampler(shuffle true")));
  EXPECT_THAT(refused(DistributedSampler(20, {}, {.remainder = Remainder::kDrop}).state()),
              HasSubstr("remainder drop"));
  EXPECT_THAT(refused(WeightedSampler(20, weights, {}).state()), HasSubstr("belongs to WeightedSampler(samples 20"));
  EXPECT_THAT(refused(LengthBucketSampler(20, lengths, {}).state()),
              HasSubstr("belongs to LengthBucketSampler(batch_size 1"));
  SamplerState damaged = sampler.state();
  damaged.consumed = 21;
  EXPECT_THAT(refused(damaged),
              HasSubstr("cannot resume after 21 samples of epoch 0: epochs count from 0 and have 20"));
  damaged = sampler.state();
  damaged.epoch = -1;
  EXPECT_THAT(refused(damaged), HasSubstr("of epoch -1"));
  EXPECT_EQ(sampler.state(), DistributedSampler(20, {}, {}).state()) << "nothing has changed";

  WeightedSampler weighted(20, weights, {});
  EXPECT_THAT(message_of([&] { weighted.restore(WeightedSampler(20, others, {}).state()); }),
              HasSubstr("WeightedSampler: rank 0 cannot restore"));
  LengthBucketSampler bucketed(20, lengths, {});
  EXPECT_THAT(message_of([&] { bucketed.restore(LengthBucketSampler(20, Indices(20, 4), {}).state()); }),
              HasSubstr("cannot restore"));
}

// The other samplers share the code, so one change of ranks is enough for each.
TEST(Resume, WeightedAndBucketedSamplersContinueWithOtherRanks) {
  const Numbers set(64);
  std::vector<double> weights(64, 1);
  weights[7] = 40;
  Indices lengths;
  for (std::int64_t i = 0; i < 64; ++i) lengths.push_back(i * 5 % 17 + 1);
  const auto resumed = [&](const auto& make, const DataLoaderOptions& options) {
    Job alone(set, make(1), options), first(set, make(4), options), second(set, make(2), options);
    Indices seen = flat(first.take(2));
    second.restore(first.state());
    const Indices rest = flat(second.take());
    seen.insert(seen.end(), rest.begin(), rest.end());
    const Indices whole = flat(alone.take());
    return std::pair(sorted(seen), sorted(whole));
  };
  for (const bool replacement : {true, false}) {
    const auto [seen, whole] = resumed(
        [&](int ranks) {
          std::vector<WeightedSampler> all;
          for (int rank = 0; rank < ranks; ++rank)
            all.emplace_back(64, weights, rank_of(rank, ranks), WeightedSamplerOptions{.replacement = replacement});
          return all;
        },
        {.batch_size = 4, .num_workers = 2});
    EXPECT_EQ(seen, whole);
  }
  const auto [seen, whole] = resumed(
      [&](int ranks) {
        std::vector<LengthBucketSampler> all;
        for (int rank = 0; rank < ranks; ++rank)
          all.emplace_back(64, lengths, rank_of(rank, ranks),
                           LengthBucketSamplerOptions{
                               .batch_size = 4, .max_tokens = 40, .pool_batches = 4, .remainder = Remainder::kExact});
        return all;
      },
      {.num_workers = 2});
  EXPECT_EQ(seen, whole);
  EXPECT_EQ(seen, range(64));
}

}  // namespace
}  // namespace lockstep::data

#include "lockstep/data/weighted_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/combine.h"
#include "lockstep/data/loader.h"
#include "lockstep/tensor/random.h"
#include "tests/data/samplers_for_tests.h"
#include "tests/support/message_of.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Weights = std::vector<double>;

// The draws by definition: a walk over the remaining weights in order. Sums of integers are exact.
Indices draws_of(Weights weights, std::int64_t draws, const WeightedSamplerOptions& options, std::int64_t epoch) {
  Philox random(options.seed, random_stream(RandomUse::kOrder, static_cast<std::uint64_t>(epoch)));
  Indices drawn;
  for (std::int64_t i = 0; i < draws; ++i) {
    const std::uint64_t high = random.next(), bits = (high << 32 | random.next()) >> 11;
    double left = std::ldexp(static_cast<double>(bits), -53) * std::accumulate(weights.begin(), weights.end(), 0.0);
    std::size_t index = 0;
    while (left >= weights[index]) left -= weights[index++];
    drawn.push_back(static_cast<std::int64_t>(index));
    if (!options.replacement) weights[index] = 0;
  }
  return drawn;
}

TEST(WeightedSampler, DrawsByItsDefinition) {
  for (const std::size_t size : {1U, 2U, 16U, 64U}) {  // powers of two, where the tree keeps the order of the weights
    Weights weights(size, 2);
    for (std::size_t i = 0; i < size; ++i) weights[i] = i % 4 == 1 ? 0 : static_cast<double>(i % 7 + 1);
    weights[0] = 3;
    const auto above_0 = std::count_if(weights.begin(), weights.end(), [](double weight) { return weight > 0; });
    for (const bool replacement : {true, false})
      for (const std::int64_t epoch : {0, 1}) {
        const WeightedSamplerOptions options{
            .samples = replacement ? 50 : above_0, .replacement = replacement, .seed = 4};
        WeightedSampler sampler(static_cast<std::int64_t>(size), weights, {}, options);
        sampler.set_epoch(epoch);
        EXPECT_EQ(sampler.indices(), draws_of(weights, options.samples, options, epoch))
            << size << " " << replacement << " " << epoch;
      }
  }
}

// The draws are the same in every run, so these limits are not subject to chance: 4.5 standard deviations of a binomial
// distribution.
TEST(WeightedSampler, FrequenciesFollowTheWeights) {
  const Weights weights = {1, 0, 2.5, 0.001, 6.499, 1e-300, 0};
  constexpr std::int64_t kDraws = 100000;
  const WeightedSampler sampler(7, weights, {}, {.samples = kDraws, .seed = 1});
  std::vector<std::int64_t> counts(7);
  for (const std::int64_t index : sampler.indices()) ++counts[static_cast<std::size_t>(index)];
  for (std::size_t i = 0; i < 7; ++i) {
    const double p = weights[i] / 10, deviation = std::sqrt(static_cast<double>(kDraws) * p * (1 - p));
    EXPECT_NEAR(static_cast<double>(counts[i]), static_cast<double>(kDraws) * p, 4.5 * deviation) << i;
  }
  EXPECT_EQ(counts[1] + counts[6], 0);
}

// Without replacement the first draw follows the weights, and the second the weights of the rest: P(a, then b) = a /
// sum x b / (sum - a).
TEST(WeightedSampler, WithoutReplacementOrdersFollowTheWeights) {
  const Weights weights = {1, 2, 3};
  WeightedSampler sampler(3, weights, {}, {.replacement = false, .seed = 2});
  constexpr int kEpochs = 20000;
  std::vector<std::vector<int>> counts(3, std::vector<int>(3));
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    sampler.set_epoch(epoch);
    const Indices order = sampler.indices();
    ASSERT_EQ(order.size(), 3u);
    ++counts[static_cast<std::size_t>(order[0])][static_cast<std::size_t>(order[1])];
  }
  for (std::size_t a = 0; a < 3; ++a)
    for (std::size_t b = 0; b < 3; ++b) {
      const double p = a == b ? 0 : weights[a] / 6 * weights[b] / (6 - weights[a]),
                   deviation = std::sqrt(kEpochs * p * (1 - p));
      EXPECT_NEAR(counts[a][b], kEpochs * p, 4.5 * deviation) << a << " " << b;
    }
}

TEST(WeightedSampler, IsTheSameOnAnyNumberOfRanks) {
  Weights weights(37, 1);
  weights[5] = 9;
  for (const bool replacement : {true, false}) {
    const WeightedSamplerOptions options{.samples = 24, .replacement = replacement, .seed = 3};
    const Indices alone = WeightedSampler(37, weights, {}, options).indices();
    for (const int ranks : {2, 3, 4}) {
      Indices together(24);
      for (int rank = 0; rank < ranks; ++rank) {
        const Indices mine = WeightedSampler(37, weights, rank_of(rank, ranks), options).indices();
        for (std::size_t i = 0; i < mine.size(); ++i)
          together[i * static_cast<std::size_t>(ranks) + static_cast<std::size_t>(rank)] = mine[i];
      }
      EXPECT_EQ(together, alone) << ranks;
    }
  }
}

TEST(WeightedSampler, SizesAndRemainders) {
  const Weights weights(10, 1);
  const auto size_of_rank_3 = [&](Remainder remainder) {
    const WeightedSampler sampler(10, weights, rank_of(3, 4), {.samples = 7, .remainder = remainder});
    EXPECT_EQ(static_cast<std::int64_t>(sampler.indices().size()), sampler.size());
    return sampler.size();
  };
  EXPECT_EQ(size_of_rank_3(Remainder::kPad), 2);
  EXPECT_EQ(size_of_rank_3(Remainder::kDrop), 1);
  EXPECT_EQ(size_of_rank_3(Remainder::kExact), 1);
  EXPECT_EQ(WeightedSampler(10, weights, {}).total(), 10);
  EXPECT_EQ(WeightedSampler(10, weights, {}, {.samples = 25}).total(), 25) << "more than the set has";
  const Indices all = WeightedSampler(10, weights, {}, {.replacement = false}).indices();
  EXPECT_THAT(all, ::testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST(WeightedSampler, BalancesClasses) {
  const Indices labels = {4, 4, 4, -1, 4, 4, 4, 4, 4, 4};
  const Weights weights = balancing_weights(labels);
  EXPECT_EQ(weights[3], 1.0);
  EXPECT_EQ(weights[0], 1.0 / 9);
  const Indices drawn = WeightedSampler(10, weights, {}, {.samples = 10000, .seed = 1}).indices();
  EXPECT_NEAR(static_cast<double>(std::count(drawn.begin(), drawn.end(), 3)), 5000, 225);
}

TEST(WeightedSampler, RefusesInvalidWeights) {
  const auto refused = [](Weights weights, WeightedSamplerOptions options = {}) {
    return message_of([&] { WeightedSampler(3, weights, rank_of(1, 2), options); });
  };
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_THAT(refused({1, 2}), HasSubstr("rank 1: 2 weights for 3 samples: give one weight for each sample"));
  EXPECT_THAT(refused({1, 2, 3, 4}), HasSubstr("4 weights for 3 samples"));
  EXPECT_THAT(refused({1, -0.5, 1}),
              HasSubstr("the weight of sample 1 is -0.5, expected a finite number of 0 or more"));
  EXPECT_THAT(refused({1, 1, kNaN}), HasSubstr("the weight of sample 2 is nan"));
  EXPECT_THAT(refused({kInfinity, 1, 1}), HasSubstr("the weight of sample 0 is inf"));
  EXPECT_THAT(refused({0, 0, 0}), HasSubstr("the sum of the 3 weights is 0: at least one weight must be above 0"));
  EXPECT_THAT(refused({1e308, 1e308, 1e308}), HasSubstr("the sum of the 3 weights is inf: give smaller weights"));
  EXPECT_THAT(refused({1, 0, 1}, {.replacement = false}),
              AllOf(HasSubstr("3 samples per epoch without replacement, but only 2 have a weight above 0"),
                    HasSubstr("draw at most 2")));
  EXPECT_EQ(refused({1, 0, 1}, {.samples = 2, .replacement = false}), "nothing was thrown");
  EXPECT_THAT(refused({1, 1, 1}, {.samples = -1}), HasSubstr("-1 samples per epoch"));
  EXPECT_THAT(refused({1, 1, 1}, {.samples = 1, .remainder = Remainder::kDrop}), HasSubstr("leaves none"));
}

TEST(WeightedSampler, FeedsALoader) {
  const TensorDataset set({Tensor::full({6}, 1)});
  const Weights weights = {1, 1, 1, 1, 1, 1};
  const WeightedSampler sampler(6, weights, {}, {.samples = 20}), larger(7, Weights(7, 1), {});
  std::int64_t seen = 0;
  DataLoader loader(set, sampler, {.batch_size = 8, .num_workers = 2});
  EXPECT_EQ(loader.batches(), 3);
  for (auto& batch : loader) seen += batch[0].count();
  EXPECT_EQ(seen, 20);
  EXPECT_THAT(message_of([&] { DataLoader(set, larger, {}); }),
              HasSubstr("the sampler is for 7 samples, but the data set has 6"));
}

}  // namespace
}  // namespace lockstep::data

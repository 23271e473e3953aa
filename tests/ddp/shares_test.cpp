// Unequal shares of the mean: weights by samples, and epochs of different lengths.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "lockstep/core/error.h"
#include "lockstep/tensor/random.h"
#include "tests/ddp/heads.h"
#include "tests/ddp/ranks.h"
#include "tests/support/in_mib.h"
#include "tests/support/message_of.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

class Shares : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Wire, Shares, ::testing::Values("threads", "shm", "tcp"),
                         [](const auto& test) { return std::string(test.param); });

// Rank 0 has 5 samples and each other rank one: the sum of all samples' gradients and their number are powers of two.
TEST_P(Shares, AMeanByWeightsIsTheMeanOfAllSamples) {
  expect_all_well(run_ranks(4, GetParam(), [](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group, {.bucket_cap_mb = {in_mib(64)}});
    const bool is_large = group->rank() == 0;
    for (int step = 0; step < 2; ++step) {
      clear_gradients(ddp);
      ddp.set_weight(is_large ? 5 : 1);
      EXPECT_TRUE(ddp.has_weight());
      heads_loss(ddp, is_large ? 2.F : 10.F).backward();
      EXPECT_FALSE(ddp.has_weight());
      for (const Tensor& head : model.heads) EXPECT_EQ(gradient_of(head), (5 * 2 + 3 * 10) / 8.F);
      EXPECT_EQ(gradient_of(model.trunk), 3 * (5 * 2 + 3 * 10) / 8.F);
      clear_gradients(ddp);
      heads_loss(ddp, is_large ? 2.F : 10.F).backward();
      EXPECT_EQ(gradient_of(model.heads[0]), (2 + 3 * 10) / 4.F) << "the weight applies to one pass";
    }
  }));
}

TEST_P(Shares, EqualWeightsHaveTheBitsOfThePlainMean) {
  expect_all_well(run_ranks(3, GetParam(), [](auto group) {
    Heads model(16);
    DistributedDataParallel ddp(model, group);
    Philox random(5, static_cast<std::uint64_t>(group->rank()));
    for (const double weight : {1.0, 0.1, 3.0, 1e-300, 1e300}) {
      const float x = random.normal();
      std::vector<float> plain;
      clear_gradients(ddp);
      heads_loss(ddp, x).backward();
      for (const NamedTensor& parameter : ddp.parameters()) plain.push_back(gradient_of(parameter.tensor));
      clear_gradients(ddp);
      ddp.set_weight(weight);
      heads_loss(ddp, x).backward();
      for (std::size_t i = 0; i < plain.size(); ++i)
        EXPECT_EQ(gradient_of(ddp.parameters()[i].tensor), plain[i]) << weight;
    }
  }));
}

TEST_P(Shares, AnInvalidWeightIsAnErrorOnAllRanksAndTheGroupStaysUsable) {
  for (const double wrong : {0.0, -3.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    expect_all_well(run_ranks(4, GetParam(), [wrong](auto group) {
      Heads model;
      DistributedDataParallel ddp(model, group);
      ddp.set_weight(group->rank() == 2 ? wrong : 8);
      EXPECT_THAT(message_of([&] { heads_loss(ddp, 1).backward(); }),
                  HasSubstr(fmt::format("step 1: rank 2 set the weight {}, expected the number of its samples, above 0",
                                        wrong)));
      clear_gradients(ddp);
      heads_loss(ddp, 1).backward();
      EXPECT_EQ(gradient_of(model.heads[0]), 1);
    }));
  }
}

// The sum overflows float64, but a quarter of a rank's weight does not.
TEST_P(Shares, WeightsWhoseSumOverflowsCount) {
  for (const double unit : {5e307, 1e-300, 5e-324})
    expect_all_well(run_ranks(2, GetParam(), [unit](auto group) {
      Heads model;
      DistributedDataParallel ddp(model, group);
      ddp.set_weight(group->rank() == 0 ? 3 * unit : unit);
      heads_loss(ddp, group->rank() == 0 ? 2.F : 10.F).backward();
      EXPECT_EQ(gradient_of(model.heads[0]), (3 * 2 + 10) / 4.F) << unit;
    }));
}

TEST_P(Shares, AWeightOnOneRankOnlyIsAnErrorOnAllRanks) {
  const auto failures = run_ranks(2, GetParam(), [](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group);
    if (group->rank() == 1) ddp.set_weight(3);
    heads_loss(ddp, 1).backward();
  });
  EXPECT_THAT(failures, Each(AllOf(HasSubstr("the ranks make different calls"), HasSubstr("weights"))));
}

TEST_P(Shares, EpochsOfUnequalLengthAreAnErrorWithTheNumbers) {
  const auto failures = run_ranks(4, GetParam(), [](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group);
    ddp.begin_epoch(12);
    ddp.begin_epoch(group->rank() == 2 ? 11 : 12);
  });
  EXPECT_THAT(failures, Each(HasSubstr("11 on rank 2; 12 on rank 0, 1, 3.")));
}

}  // namespace
}  // namespace lockstep::testing

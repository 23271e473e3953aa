// Learning rate schedules: pure functions of the step, and PyTorch's numbers for the one-cycle rate.
#include "lockstep/optim/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <vector>

#include "tests/support/message_of.h"

namespace lockstep::optim {
namespace {

// torch 2.15: OneCycleLR(SGD, max_lr=0.1, total_steps=10), the rate of each step by get_last_lr().
TEST(OneCycle, EqualsPyTorchWithItsDefaults) {
  const OneCycleRate rate{.peak = 0.1f, .total_steps = 10};
  const std::array<double, 10> expected = {0.004,        0.052,        0.1,          0.0950484632, 0.0811745654,
                                           0.0611262022, 0.0388741978, 0.0188258346, 0.0049519368, 4e-07};
  for (std::size_t step = 0; step < expected.size(); ++step)
    EXPECT_NEAR(rate.at(static_cast<std::int64_t>(step)), expected[step], 2e-7 * (expected[step] + 0.1))
        << "step " << step;
}

// The same with max_lr=0.4, total_steps=7, pct_start=0.5, div_factor=10, final_div_factor=100: the peak is between
// steps.
TEST(OneCycle, EqualsPyTorchWithAPeakBetweenSteps) {
  const OneCycleRate rate{
      .peak = 0.4f, .total_steps = 7, .warmup_share = 0.5f, .start_divisor = 10, .end_divisor = 100};
  const std::array<double, 7> expected = {0.04,        0.164376941,  0.365623059, 0.38021358,
                                          0.244659683, 0.0756267376, 0.0004};
  for (std::size_t step = 0; step < expected.size(); ++step)
    EXPECT_NEAR(rate.at(static_cast<std::int64_t>(step)), expected[step], 2e-7 * (expected[step] + 0.1))
        << "step " << step;
}

TEST(OneCycle, KeepsTheLastRateAndSupportsShortRuns) {
  const OneCycleRate rate{.peak = 0.1f, .total_steps = 10};
  EXPECT_EQ(rate.at(10), rate.at(9));
  EXPECT_EQ(rate.at(1'000'000), rate.at(9));
  for (const std::int64_t total : {1, 2, 3}) {
    const OneCycleRate brief{.peak = 0.1f, .total_steps = total};
    for (std::int64_t step = 0; step < total; ++step) {
      EXPECT_GE(brief.at(step), 0.f) << "step " << step << " of " << total;
      EXPECT_LE(brief.at(step), 0.1f) << "step " << step << " of " << total;
    }
  }
}

TEST(Staircase, FallsInFullStairs) {
  const StaircaseRate rate{.initial = 0.5f, .factor = 0.5f, .steps_per_stair = 10};
  EXPECT_EQ(rate.at(0), 0.5f);
  EXPECT_EQ(rate.at(9), 0.5f);
  EXPECT_EQ(rate.at(10), 0.25f);
  EXPECT_EQ(rate.at(35), 0.0625f);
}

TEST(Step, FallsAtItsMilestones) {
  const StepRate rate{.initial = 0.8f, .factor = 0.5f, .milestones = {30, 10, 10}};
  EXPECT_EQ(rate.at(0), 0.8f);
  EXPECT_EQ(rate.at(9), 0.8f);
  EXPECT_EQ(rate.at(10), 0.2f);
  EXPECT_EQ(rate.at(29), 0.2f);
  EXPECT_EQ(rate.at(1'000'000), 0.1f);
  EXPECT_EQ((StepRate{.initial = 0.8f, .factor = 0.5f, .milestones = {}}).at(7), 0.8f);
}

TEST(Exponential, FallsInEveryStep) {
  const ExponentialRate each{.initial = 0.5f, .factor = 0.25f}, slow{.initial = 0.5f, .factor = 0.25f, .steps = 4};
  EXPECT_EQ(each.at(0), 0.5f);
  EXPECT_EQ(each.at(2), 0.03125f);
  EXPECT_EQ(slow.at(2), 0.25f);
  EXPECT_NEAR(slow.at(1), 0.5 * std::sqrt(0.5), 1e-7);
}

TEST(Cosine, RisesByALineAndFallsByACosine) {
  const CosineRate rate{.peak = 1, .total_steps = 110, .warmup_steps = 10, .lowest = 0.2f, .start = 0.5f};
  EXPECT_EQ(rate.at(0), 0.5f);
  EXPECT_EQ(rate.at(5), 0.75f);
  EXPECT_EQ(rate.at(10), 1);
  EXPECT_NEAR(rate.at(60), 0.6, 1e-6);                               // halfway
  EXPECT_NEAR(rate.at(35), 0.2 + 0.4 * (1 + std::sqrt(0.5)), 1e-6);  // cos(pi / 4)
  EXPECT_EQ(rate.at(110), 0.2f);
  EXPECT_EQ(rate.at(1'000'000), 0.2f);
  const CosineRate bare{.peak = 1, .total_steps = 2};
  EXPECT_EQ(bare.at(0), 1);
  EXPECT_NEAR(bare.at(1), 0.5, 1e-7);
  EXPECT_EQ((CosineRate{.peak = 1, .total_steps = 5, .warmup_steps = 5}).at(5), 0) << "warm-up only";
}

TEST(Schedule, IsAnyRateOrAFunction) {
  std::vector<Schedule> all = {ConstantRate{0.5f}, StepRate{.initial = 1, .factor = 0.5f, .milestones = {3}}};
  all.emplace_back([](std::int64_t step) { return step < 3 ? 0.25f : 0.125f; });
  EXPECT_EQ(all[0].at(7), 0.5f);
  EXPECT_EQ(all[1].at(7), 0.5f);
  EXPECT_EQ(all[2].at(2), 0.25f);
  const Schedule copy = all[2];
  EXPECT_EQ(copy.at(3), 0.125f);
}

TEST(Rates, RefuseInvalidNumbers) {
  using ::testing::HasSubstr;
  const auto text = [](const Schedule& rate) { return message_of([&] { rate.at(3); }); };
  EXPECT_THAT(text(StaircaseRate{1, 0.5f, 0}), HasSubstr("StaircaseRate: got steps_per_stair 0, expected at least 1"));
  EXPECT_THAT(text(ExponentialRate{1, 0.5f, -1}), HasSubstr("ExponentialRate: got steps -1, expected at least 1"));
  EXPECT_THAT(text(CosineRate{.peak = 1, .total_steps = 5, .warmup_steps = 6}),
              HasSubstr("CosineRate: got warmup_steps 6, expected 0 to total_steps, which is 5"));
  EXPECT_THAT(text(OneCycleRate{.peak = 1, .total_steps = 0}),
              HasSubstr("OneCycleRate: got total_steps 0, expected at least 1"));
  EXPECT_THAT(text(OneCycleRate{.peak = 1, .total_steps = 9, .warmup_share = 2}),
              HasSubstr("OneCycleRate: got warmup_share 2, expected 0 to 1"));
  EXPECT_THAT(text(OneCycleRate{.peak = 1, .total_steps = 9, .start_divisor = 0}),
              HasSubstr("OneCycleRate: got start_divisor 0"));
  EXPECT_THAT(text(Schedule(std::function<float(std::int64_t)>())),
              HasSubstr("Schedule: the function that returns the rate is empty"));
}

TEST(Constant, IsConstant) { EXPECT_EQ(ConstantRate{0.3f}.at(12'345), 0.3f); }

}  // namespace
}  // namespace lockstep::optim

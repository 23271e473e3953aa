// Loss scaling: the rule of PyTorch's GradScaler, skipped steps, and the checkpointed state.
#include "lockstep/optim/loss_scaler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/sgd.h"
#include "tests/support/message_of.h"

namespace lockstep::optim {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Trainee {
  Tensor weight = Tensor::from<float>(std::vector<float>{1, -2}, {2});
  Trainee() { require_grad(weight), bind_grad(weight, cpu_device().allocate(weight.bytes())); }

  void give(float first, float second) const {
    grad(weight).copy_from(Tensor::from<float>(std::vector<float>{first, second}, {2}));
    mark_grad_written(weight);
  }
  std::vector<float> values() const { return {weight.span<float>()[0], weight.span<float>()[1]}; }
};

TEST(LossScaler, ScalesTheLossAndItsGradients) {
  const Tensor x = Tensor::full({}, 3);
  require_grad(x);
  LossScaler scaler({.initial = 1024});
  const Tensor loss = scaler.scale(l2_loss(x));
  EXPECT_EQ(loss.item(), 4.5F * 1024);
  loss.backward();
  EXPECT_EQ(grad(x).item(), 3 * 1024.0F);
}

TEST(LossScaler, StepsEqualThoseOfUnscaledGradients) {
  const Trainee plain, scaled;
  LossScaler scaler({.initial = 4096});
  SGD one({{"w", plain.weight}}, {.lr = 0.1F, .momentum = 0.9F, .weight_decay = 0.01F});
  SGD other({{"w", scaled.weight}}, {.lr = 0.1F, .momentum = 0.9F, .weight_decay = 0.01F, .loss_scaler = &scaler});
  for (int step = 0; step < 3; ++step) {
    plain.give(0.3F, -0.7F), scaled.give(0.3F * 4096, -0.7F * 4096);
    one.step(), other.step();
  }
  EXPECT_EQ(scaled.values(), plain.values());
}

TEST(LossScaler, GrowsAfterGoodStepsAndSkipsABadOne) {
  const Trainee trainee;
  LossScaler scaler({.initial = 8, .growth_interval = 3});
  SGD sgd({{"w", trainee.weight}}, {.lr = 1, .momentum = 0.5F, .loss_scaler = &scaler});
  const auto step = [&](float gradient) {
    trainee.give(gradient, 0);
    sgd.step();
  };
  for (int i = 0; i < 2; ++i) step(1);
  EXPECT_EQ(scaler.value(), 8);
  step(1);
  EXPECT_EQ(scaler.value(), 16);
  step(1);
  const std::vector<float> before = trainee.values(),
                           momentum = {sgd.state()[0].tensor.span<float>()[0], sgd.state()[0].tensor.span<float>()[1]};
  for (const float bad : {kInfinity, -kInfinity, kNan}) {
    const float scale = scaler.value();
    step(bad);
    EXPECT_EQ(trainee.values(), before) << bad;
    EXPECT_EQ(sgd.state()[0].tensor.span<float>()[0], momentum[0]);
    EXPECT_EQ(scaler.value(), scale / 2);
  }
  EXPECT_EQ(scaler.skipped_steps(), 3);
  for (int i = 0; i < 2; ++i) step(1);
  EXPECT_EQ(scaler.value(), 2) << "good steps count from the last change";
  EXPECT_NE(trainee.values(), before);
  step(1);
  EXPECT_EQ(scaler.value(), 4);
  EXPECT_EQ(scaler.skipped_steps(), 3);
}

TEST(LossScaler, NeverGrowsBeyondFloat) {
  const Trainee trainee;
  LossScaler scaler({.initial = 3e38F, .growth_interval = 1});
  SGD sgd({{"w", trainee.weight}}, {.lr = 1, .loss_scaler = &scaler});
  trainee.give(1, 1);
  sgd.step();
  EXPECT_EQ(scaler.value(), 3e38F);
}

TEST(LossScaler, ItsStateIsLiveInTheOptimizer) {
  const Trainee trainee;
  LossScaler scaler;
  EXPECT_EQ(scaler.value(), 65536);
  SGD sgd({{"w", trainee.weight}}, {.lr = 1, .loss_scaler = &scaler});
  const std::vector<NamedTensor> state = sgd.state();
  ASSERT_EQ(state.size(), 1U);
  EXPECT_EQ(state[0].name, "loss_scaler.state");
  state[0].tensor.copy_from(
      Tensor::from<float>(std::vector<float>{64, 0, 1999, 5}, {4}));  // as loading a checkpoint does
  EXPECT_EQ(scaler.value(), 64);
  EXPECT_EQ(scaler.skipped_steps(), 5);
  trainee.give(64, 0);
  sgd.step();
  EXPECT_EQ(trainee.values()[0], 0);
  EXPECT_EQ(scaler.value(), 128) << "the 2,000th good step";
}

// PyTorch: scaler.step(a); scaler.step(b); scaler.update().
TEST(LossScaler, OptimizersThatShareItUseOneScaleAndCountAsOneStep) {
  const auto run = [](LossScaler* scaler) {
    Trainee first, second;
    SGD a({{"a", first.weight}}, {.lr = 0.1F, .loss_scaler = scaler}),
        b({{"b", second.weight}}, {.lr = 0.1F, .loss_scaler = scaler});
    for (int step = 0; step < 12; ++step) {
      a.zero_grad(), b.zero_grad();
      const Tensor loss = l2_loss(first.weight * second.weight);
      (scaler != nullptr ? scaler->scale(loss) : loss).backward();
      a.step(), b.step();
    }
    std::vector<float> values = first.values(), more = second.values();
    values.insert(values.end(), more.begin(), more.end());
    return values;
  };
  LossScaler scaler({.initial = 64, .growth_interval = 3});
  EXPECT_EQ(run(&scaler), run(nullptr));
  EXPECT_EQ(scaler.value(), 1024);
}

TEST(LossScaler, ABadGradientSkipsOnlyItsOptimizerAndLowersTheScaleOnce) {
  for (const bool bad_first : {true, false}) {
    const Trainee good, bad;
    LossScaler scaler({.initial = 64});
    SGD of_good({{"w", good.weight}}, {.lr = 1, .loss_scaler = &scaler}),
        of_bad({{"w", bad.weight}}, {.lr = 1, .loss_scaler = &scaler});
    scaler.scale(Tensor::full({}, 1));
    good.give(64, 0), bad.give(kNan, 0);
    (bad_first ? of_bad : of_good).step();
    EXPECT_EQ(scaler.value(), bad_first ? 32 : 64);
    (bad_first ? of_good : of_bad).step();
    EXPECT_EQ(good.values(), (std::vector<float>{0, -2}));
    EXPECT_EQ(bad.values(), (std::vector<float>{1, -2}));
    EXPECT_EQ(scaler.value(), 32);
    EXPECT_EQ(scaler.skipped_steps(), 1);
    EXPECT_EQ(scaler.scale(Tensor::full({}, 1)).item(), 32);
  }
}

// Two losses are scaled before either optimizer steps, as for a generator and a discriminator.
TEST(LossScaler, ALossKeepsTheScaleThatItWasMultipliedBy) {
  const Trainee first, second;
  LossScaler scaler({.initial = 64, .growth_interval = 1});
  SGD a({{"w", first.weight}}, {.lr = 1, .loss_scaler = &scaler}),
      b({{"w", second.weight}}, {.lr = 1, .loss_scaler = &scaler});
  const Tensor of_first = scaler.scale(l2_loss(first.weight)), of_second = scaler.scale(l2_loss(second.weight));
  of_first.backward();
  a.step();
  EXPECT_EQ(scaler.value(), 128);
  of_second.backward();
  b.step();
  EXPECT_EQ(second.values(), (std::vector<float>{0, 0})) << "w - w";
  EXPECT_EQ(scaler.value(), 128);
}

TEST(LossScaler, TheScaleHasAMinimumAndTheNextGoodStepIsCorrect) {
  const Trainee trainee;
  LossScaler scaler({.initial = 1024, .max_skips_in_a_row = 0}),
      smaller({.initial = 1024, .min_scale = 0.25F, .max_skips_in_a_row = 0});
  for (LossScaler* each : {&scaler, &smaller}) {
    SGD sgd({{"w", trainee.weight}}, {.lr = 1, .loss_scaler = each});
    const std::vector<float> before = trainee.values();
    for (int step = 0; step < 200; ++step) trainee.give(kNan, 0), sgd.step();
    const float floor = each == &scaler ? 1 : 0.25F;
    EXPECT_EQ(each->value(), floor);
    EXPECT_EQ(each->skips_in_a_row(), 200);
    trainee.give(floor / 2, 0), sgd.step();
    EXPECT_EQ(trainee.values(), (std::vector<float>{before[0] - 0.5F, before[1]}));
    EXPECT_EQ(each->skips_in_a_row(), 0);
  }
}

TEST(LossScaler, SkipsInARowAreAnErrorWithTheirNumberAndARemedy) {
  const Trainee trainee;
  LossScaler scaler({.initial = 1024, .max_skips_in_a_row = 5});
  SGD sgd({{"w", trainee.weight}}, {.lr = 1, .loss_scaler = &scaler});
  const auto step = [&](float gradient) { trainee.give(gradient, 0), sgd.step(); };
  for (int round = 0; round < 3; ++round) {
    for (int bad = 0; bad < 4; ++bad) step(kInfinity);
    step(0);
  }
  for (int bad = 0; bad < 4; ++bad) step(kInfinity);
  EXPECT_EQ(scaler.skips_in_a_row(), 4);
  EXPECT_NO_THROW(scaler.check());
  const std::string message = message_of([&] { step(kInfinity); });
  for (const char* part : {"in each of the last 5 steps", "the scale has fallen to 1", "expected fewer than 5",
                           "look for NaN in the samples"})
    EXPECT_THAT(message, ::testing::HasSubstr(part));
  EXPECT_EQ(message_of([&] { scaler.check(); }), message);
  EXPECT_EQ(LossScalerOptions().max_skips_in_a_row, 100);
}

TEST(LossScaler, AScaleOfZeroThatWasSavedIsRaised) {
  const Trainee trainee;
  LossScaler scaler;
  SGD sgd({{"w", trainee.weight}}, {.lr = 1, .loss_scaler = &scaler});
  sgd.state()[0].tensor.copy_from(Tensor::from<float>(std::vector<float>{0, 0, 0, 200}, {4}));
  trainee.give(1, 0);
  sgd.step();
  EXPECT_EQ(trainee.values()[0], 0);
  EXPECT_EQ(scaler.value(), 1);
}

TEST(LossScaler, RefusesInvalidArguments) {
  for (const LossScalerOptions& options : {LossScalerOptions{.initial = 0},
                                           {.initial = kInfinity},
                                           {.growth = 0.5F},
                                           {.backoff = 0},
                                           {.backoff = 1.5F},
                                           {.growth_interval = 0},
                                           {.min_scale = 0},
                                           {.min_scale = 1e-39F},
                                           {.max_skips_in_a_row = -1}})
    EXPECT_THROW(LossScaler{options}, InvalidArgument);
}

}  // namespace
}  // namespace lockstep::optim

// Tests of gradient clipping and of averaged weights.
#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/clip.h"
#include "lockstep/optim/ema.h"
#include "tests/optim/trainee.h"

namespace lockstep::optim {
namespace {

TEST(ClipGradNorm, ScalesAllGradientsToTheLimit) {
  const Tensor a = parameter_of({0, 0}), b = parameter_of({0}), without = parameter_of({0});
  give_gradient(a, {3, 0}), give_gradient(b, {-4});
  const Tensor norm = clip_grad_norm({{"a", a}, {"b", b}, {"without", without}}, 2.5F);
  EXPECT_EQ(norm.item(), 5);
  EXPECT_NEAR(grad(a).span<float>()[0], 1.5, 1e-6);
  EXPECT_EQ(grad(a).span<float>()[1], 0);
  EXPECT_NEAR(grad(b).item(), -2, 1e-6);
  EXPECT_LT(clip_grad_norm({{"a", a}, {"b", b}}, 2.5F).item(), 2.5F) << "1e-6 below, as in PyTorch";
  EXPECT_FALSE(has_grad(without));
}

TEST(ClipGradNorm, ATensorUnderTwoNamesCountsOnce) {
  const Tensor a = parameter_of({0, 0});
  give_gradient(a, {3, 4});
  EXPECT_EQ(clip_grad_norm({{"table", a}, {"head", a}}, 2.5F).item(), 5);
  EXPECT_NEAR(grad(a).span<float>()[0], 1.5, 1e-6);
}

TEST(ClipGradNorm, LeavesSmallGradientsToTheBit) {
  const std::vector<float> gradient = gradient_of_step(1, 1003);
  const Tensor a = parameter_of(std::vector<float>(1003));
  give_gradient(a, gradient);
  double squares = 0;
  for (const float value : gradient) squares += static_cast<double>(value) * value;
  EXPECT_NEAR(clip_grad_norm({{"a", a}}, 1e4F).item(), std::sqrt(squares), 1e-6 * std::sqrt(squares));
  EXPECT_EQ(values_of(grad(a)), gradient);
}

TEST(ClipGradNorm, AppliesToUnscaledGradients) {
  const Tensor a = parameter_of({0, 0});
  LossScaler scaler({.initial = 1024});
  give_gradient(a, {3 * 1024, 4 * 1024});
  EXPECT_EQ(clip_grad_norm({{"a", a}}, 2.5F, {.loss_scaler = &scaler}).item(), 5);
  EXPECT_NEAR(grad(a).span<float>()[0], 1.5 * 1024, 1e-3);
  clip_grad_value({{"a", a}}, 1, {.loss_scaler = &scaler});
  EXPECT_EQ(grad(a).span<float>()[0], 1024);
}

TEST(ClipGradNorm, ANaNGradientShowsOrThrows) {
  const Tensor a = parameter_of({0, 0});
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    give_gradient(a, {1, bad});
    EXPECT_THROW(clip_grad_norm({{"a", a}}, 1, {.error_if_nonfinite = true}), Error);
    EXPECT_EQ(grad(a).span<float>()[0], 1) << "a failed call changes nothing";
    EXPECT_FALSE(std::isfinite(clip_grad_norm({{"a", a}}, 1).item()));
    EXPECT_TRUE(std::isnan(grad(a).span<float>()[1])) << "loss scaling must find the NaN";
  }
}

TEST(ClipGradValue, ClampsEachElement) {
  const Tensor a = parameter_of(std::vector<float>(5));
  give_gradient(a, {-3, -0.25F, 0, 0.5F, std::numeric_limits<float>::infinity()});
  clip_grad_value({{"a", a}}, 0.5F);
  EXPECT_EQ(values_of(grad(a)), (std::vector<float>{-0.5F, -0.25F, 0, 0.5F, 0.5F}));
}

TEST(Clip, RefusesInvalidArguments) {
  const Tensor a = parameter_of({0});
  LossScaler scaler;
  for (const float limit : {0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_THROW(clip_grad_norm({{"a", a}}, limit), InvalidArgument);
    EXPECT_THROW(clip_grad_value({{"a", a}}, limit), InvalidArgument);
  }
  EXPECT_THROW(clip_grad_norm({}, 1), InvalidArgument);
  EXPECT_THROW(clip_grad_norm({{"a", a}}, 1, {.loss_scaler = &scaler, .error_if_nonfinite = true}), InvalidArgument);
}

TEST(ExponentialMovingAverage, FollowsTheFormulaWithItsRamp) {
  for (const bool ramp : {true, false}) {
    const Tensor w = parameter_of({1, -2});
    ExponentialMovingAverage ema({{"w", w}}, {.decay = 0.5, .ramp = ramp});
    double expected = 1;
    for (int n = 0; n < 20; ++n) {
      w.fill(static_cast<float>(n));
      ema.update();
      const double decay = ramp ? std::min(0.5, (1.0 + n) / (10.0 + n)) : 0.5;
      expected = decay * expected + (1 - decay) * n;
    }
    EXPECT_NEAR(ema.state()[0].tensor.span<float>()[0], expected, 1e-5);
    EXPECT_EQ(w.span<float>()[0], 19) << "the weights are unchanged";
  }
}

TEST(ExponentialMovingAverage, ItsStateIsLiveAndHasTheParametersNames) {
  const Tensor w = parameter_of({1, 2});
  ExponentialMovingAverage ema({{"fc.weight", w}});
  const auto state = ema.state();
  ASSERT_EQ(state.size(), 2U);
  EXPECT_EQ(state[0].name, "fc.weight.ema");
  EXPECT_EQ(values_of(state[0].tensor), values_of(w));
  EXPECT_EQ(state[1].name, "ema.clock");
  ema.update(), ema.update();
  EXPECT_EQ(state[1].tensor.span<double>()[0], 2);
}

TEST(ExponentialMovingAverage, SwapsInAndBackBitForBit) {
  const Tensor w = parameter_of({0.1F, 0.7F});
  ExponentialMovingAverage ema({{"w", w}});
  w.fill(0.3F);
  const std::vector<float> weights = values_of(w);
  for (int round = 0; round < 2; ++round) {
    const auto averaged = ema.swapped();
    EXPECT_EQ(values_of(w), (std::vector<float>{0.1F, 0.7F}));
    EXPECT_THROW(ema.update(), InvalidArgument);
    EXPECT_THROW(static_cast<void>(ema.swapped()), InvalidArgument);
  }
  EXPECT_EQ(values_of(w), weights);
  try {
    const auto averaged = ema.swapped();
    throw std::runtime_error("an evaluation that fails");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(values_of(w), weights);
  EXPECT_EQ(values_of(ema.state()[0].tensor), (std::vector<float>{0.1F, 0.7F}));
  ema.update();
}

TEST(ExponentialMovingAverage, RefusesInvalidArguments) {
  const Tensor w = parameter_of({1});
  EXPECT_THROW(ExponentialMovingAverage({}), InvalidArgument);
  EXPECT_THROW(ExponentialMovingAverage({{"w", w}}, {.decay = 1}), InvalidArgument);
  EXPECT_THROW(ExponentialMovingAverage({{"w", w}}, {.decay = -0.1}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::optim

// Every optimizer over 100 steps, compared with PyTorch's algorithm (and Keras' Nadam) implemented here in double, and
// with weights computed by PyTorch and Keras themselves.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/optim/every_optimizer.h"
#include "tests/optim/trainee.h"

namespace lockstep::optim {
namespace {

constexpr int kSteps = 100;
constexpr std::size_t kCount = 37;
// For weights near 1: each of 100 updates is rounded to float, half a unit in the last place (6e-8) per step, plus some
// rounding in the update itself.
constexpr double kBound = 1e-5;
// Relative. The factor of decoupled decay, 1 - lr * weight_decay, is rounded to float: half a unit in the last place
// per step, always in the same direction.
constexpr double kRecordedBound = 5e-6;

class OverHundredSteps : public ::testing::TestWithParam<OptimizerCase> {};

TEST_P(OverHundredSteps, StaysNearTheFormulaInDouble) {
  const Tensor weight = parameter_of(weights_at_first(kCount));
  const auto optimizer = GetParam().make({{"w", weight}}, nullptr);
  std::vector<Scalar> expected(kCount);
  for (std::size_t i = 0; i < kCount; ++i) expected[i].w = weight.span<float>()[i];
  const std::vector<float> before = values_of(weight);
  for (int step = 1; step <= kSteps; ++step) {
    const std::vector<float> gradient = gradient_of_step(step, kCount);
    give_gradient(weight, gradient);
    optimizer->step();
    for (std::size_t i = 0; i < kCount; ++i) GetParam().formula(expected[i], gradient[i], step);
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    EXPECT_NEAR(weight.span<float>()[i], expected[i].w, kBound * std::max(1.0, std::abs(expected[i].w)))
        << "element " << i;
    EXPECT_NE(weight.span<float>()[i], before[i]) << "element " << i << " was not trained";
  }
}

TEST_P(OverHundredSteps, NamesItsState) {
  EXPECT_EQ(state_names(*GetParam().make({{"w", parameter_of({1})}}, nullptr)), GetParam().states);
}

// As recorded_optimizers.py has them: exact in float and in double.
std::vector<float> recorded_first_weights(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = (i % 2 == 0 ? 1.0F : -1.0F) * static_cast<float>(8 + i) / 4;
  return values;
}

std::vector<float> recorded_gradients(int step, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>((13 * step + 29 * static_cast<int>(i)) % 64 - 24) / 64 /
                static_cast<float>(1 << (3 * (i % 4)));
  return values;
}

TEST_P(OverHundredSteps, StaysNearTheWeightsOfPyTorchOrKeras) {
  const auto& expected = GetParam().recorded;
  const Tensor weight = parameter_of(recorded_first_weights(expected.size()));
  const auto optimizer = GetParam().make({{"w", weight}}, nullptr);
  for (int step = 1; step <= kSteps; ++step) {
    give_gradient(weight, recorded_gradients(step, expected.size()));
    optimizer->step();
  }
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_LE(std::abs(weight.span<float>()[i] - expected[i]), kRecordedBound * std::abs(expected[i]))
        << "element " << i;
}

INSTANTIATE_TEST_SUITE_P(Optimizers, OverHundredSteps, ::testing::ValuesIn(optimizer_cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace lockstep::optim

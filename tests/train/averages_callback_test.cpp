// A trainer's checkpoint that is saved while a callback makes the model hold averages.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/temporary.h"
#include "tests/train/trainer_parts.h"

namespace lockstep::train {
namespace {

// A callback that evaluates the averages and is still holding them when ModelCheckpoint saves.
class HoldsAverages : public Callback {
 public:
  void on_step_end(Trainer& trainer, std::int64_t, const Logs&) override {
    if (!ema) ema.emplace(trainer.model().named_parameters(), optim::ExponentialMovingAverageOptions{.decay = 0.5});
    ema->update();
  }
  void on_epoch_end(Trainer& trainer, std::int64_t, const Logs&) override {
    weights = values_of(trainer.model());
    swapped.emplace(*ema);
  }
  void on_train_end(Trainer&) override { swapped.reset(); }

  std::optional<optim::ExponentialMovingAverage> ema;
  std::optional<optim::ExponentialMovingAverage::Swapped> swapped;
  std::vector<float> weights;
};

TEST(AveragesCallback, WhatItHoldsIsNotSavedAsTheWeights) {
  const std::string folder = testing::temporary("averages-callback");
  const data::Pipeline set = data::Pipeline(Quadrants(64)).batch(16);
  const auto averages = std::make_shared<HoldsAverages>();
  Trainer trainer(make_dense);
  trainer.compile(classifying("mirrored"));
  trainer.fit(set, {.epochs = 1, .callbacks = {averages, std::make_shared<ModelCheckpoint>(folder)}});
  Trainer other(make_dense);
  other.compile(classifying("mirrored"));
  EXPECT_NE(values_of(other.model()), averages->weights);
  other.load(folder);
  EXPECT_EQ(values_of(other.model()), averages->weights);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace lockstep::train

// A small training whose epochs end with a smaller batch, for tests of checkpoints within an epoch.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/lockstep.h"
#include "tests/train/trainer_parts.h"

namespace lockstep::train::trainer_mid_epoch {

using Callbacks = std::vector<std::shared_ptr<Callback>>;
using Group = std::shared_ptr<ProcessGroup>;

// The last step of an epoch has 6 samples.
inline constexpr std::int64_t kSamples = 66, kBatch = 12, kSteps = 6, kEpochs = 3;

inline std::unique_ptr<nn::Module> make_net_with_dropout() {
  manual_seed(5);
  auto net = std::make_unique<nn::Sequential>();
  net->append<nn::Linear>(2, 16, nn::LinearLayerOptions{.activation = Activation::kReLU});
  net->append<nn::Dropout>(0.25F);
  net->append<nn::Linear>(16, 4);
  return net;
}

inline CompileOptions options_for(const std::string& strategy, const Group& group) {
  CompileOptions options = classifying(strategy);
  options.metrics.push_back({"loss_of_samples", Mean(cross_entropy_of_samples)});
  options.strategy_options.group = group;
  return options;
}

inline std::unique_ptr<Trainer> made(const CompileOptions& options) {
  auto trainer = std::make_unique<Trainer>(make_net_with_dropout);
  trainer->compile(options);
  return trainer;
}

inline data::Pipeline points() { return data::Pipeline(Quadrants(kSamples)).shuffle().batch(kBatch); }

inline FitOptions fitting(Callbacks callbacks = {}, std::int64_t initial_epoch = 0) {
  return {.epochs = kEpochs,
          .initial_epoch = initial_epoch,
          .validation = data::Pipeline(Quadrants(20, 7)).batch(10),
          .callbacks = std::move(callbacks),
          .progress = false};
}

inline std::shared_ptr<Callback> every_step(const std::string& folder) {
  return std::make_shared<ModelCheckpoint>(folder, CheckpointOptions{.every_steps = 1, .keep = 1000});
}

inline std::vector<std::vector<double>> values_of(const History& history) {
  std::vector<std::vector<double>> values;
  for (const std::string& name : history.names()) values.push_back(history.values(name));
  return values;
}

}  // namespace lockstep::train::trainer_mid_epoch

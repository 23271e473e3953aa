// Trainings by strategies on any devices, for a few steps.
#pragma once

#include <vector>

#include "tests/train/strategy_training.h"
#include "tests/train/two_paths.h"

namespace lockstep::train {

inline constexpr int kFewSteps = 4;
inline constexpr float kRounding = 2e-4F;

// A Sequential, which model_parallel requires.
inline Training training_of_layers() {
  Training training = training_of_net();
  training.model = [] {
    manual_seed(7);
    auto net = std::make_unique<nn::Sequential>();
    net->append_named<nn::Conv2d>("conv", 2, 4, Size2{3, 3}, nn::Conv2dLayerOptions{.activation = Activation::kReLU});
    net->append<nn::Flatten>();
    net->append_named<nn::Dropout>("drop", 0.25F);
    net->append_named<nn::Linear>("out", 64, 3);
    return net;
  };
  return training;
}

inline std::vector<float> train_on(Strategy& strategy) {
  manual_seed(11);
  for (int step = 0; step < kFewSteps; ++step) {
    const auto batch = batch_of(step);
    strategy.step(batch.first, batch.second);
  }
  return weights_of(strategy.model());
}

inline std::vector<float> weights_of_the_cpu() {
  return train_on(*make_strategy("mirrored", training_of_layers(), {.devices = {&cpu_device()}}));
}

// Uses train/deploy.h, with one clone per device.
inline std::vector<float> train_clones(const std::vector<Device*>& devices) {
  const DeployedModel deployed =
      deploy({.num_clones = static_cast<int>(devices.size()), .devices = devices}, training_of_layers(),
             {.next_batch = [step = 0]() mutable -> std::optional<std::pair<Tensor, Tensor>> {
               if (step == kFewSteps) return std::nullopt;
               return batch_of(step++);
             }});
  manual_seed(11);
  while (deployed.train_op.run()) {
  }
  return weights_of(deployed.clones->variables());
}

// Two paths of one model, which are placed on their devices by hand.
inline std::vector<float> train_two_paths(Device& first, Device& second) {
  manual_seed(3);
  TwoPaths model(72, 3, first, second);
  std::vector<NamedTensor> of_first = model.left.named_parameters();
  for (const NamedTensor& each : model.out.named_parameters()) of_first.push_back({"out." + each.name, each.tensor});
  optim::SGD near(of_first, {.lr = 0.1F}), far(model.right.named_parameters(), {.lr = 0.1F});
  for (int step = 0; step < kFewSteps; ++step) {
    const auto batch = batch_of(step);
    near.zero_grad();
    far.zero_grad();
    nn::cross_entropy(model(flatten(batch.first)), batch.second.to(first)).backward();
    near.step();
    far.step();
  }
  return weights_of(model);
}

}  // namespace lockstep::train

// Strategies on GPUs made of threads: what one process drives, and a worker of a parameter server, come to the weights that CPUs come to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/recording_device.h"
#include "tests/train/parameter_server_ranks.h"

namespace lockstep::train {
namespace {

constexpr int kFewSteps = 4;
constexpr float kRounding = 2e-4F;  // the devices' kernels are the plain ones

// A Sequential, as model_parallel wants one.
Training training_of_layers() {
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

std::vector<float> train_on(Strategy& strategy) {
  manual_seed(11);
  for (int step = 0; step < kFewSteps; ++step) {
    const auto batch = batch_of(step);
    strategy.step(batch.first, batch.second);
  }
  return weights_of(strategy.model());
}

TEST(StrategiesOnDevices, ComeToTheWeightsOfTheCpu) {
  const std::vector<float> expected = train_on(*make_strategy("mirrored", training_of_layers(), {.devices = {&cpu_device()}}));
  for (const char* name : {"mirrored", "data_parallel", "towers", "model_parallel"}) {
    testing::RecordingDevice first(0), second(1);
    const auto strategy = make_strategy(name, training_of_layers(), {.devices = {&first, &second}});
    EXPECT_LT(largest_difference(train_on(*strategy), expected), kRounding) << name;
    for (testing::RecordingDevice* device : {&first, &second})
      EXPECT_THAT(
          device->log(),
          ::testing::Contains(::testing::HasSubstr(std::string(name) == "model_parallel" && device == &second ? "linear" : "conv2d")))
          << name << " computes on " << device->name();
  }
}

TEST(StrategiesOnDevices, AWorkerComputesOnItsGpuAndTheServerOnTheCpu) {
  const std::vector<float> expected = train_on(*make_strategy("mirrored", training_of_layers(), {.devices = {&cpu_device()}}));
  testing::RecordingDevice gpu;
  std::vector<float> weights;
  testing::expect_all_well(testing::run_ranks(2, "shm", [&](const Group& group) {
    StrategyOptions options = options_of(group, {.servers = 1});
    if (group->rank() == 0) options.devices = {&gpu};
    const auto strategy = make_strategy("parameter_server", training_of_layers(), options);
    if (strategy->is_server()) return strategy->serve();
    weights = train_on(*strategy);
    EXPECT_EQ(strategy->devices().front(), &gpu);
  }));
  EXPECT_LT(largest_difference(weights, expected), kRounding);
}

}  // namespace
}  // namespace lockstep::train

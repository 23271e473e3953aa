// Strategies on simulated GPUs: strategies of one process, and a worker of a parameter server, compute the same weights
// as on CPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/device/strategy_trainings.h"
#include "tests/support/recording_device.h"
#include "tests/support/strategies_of_one_process.h"
#include "tests/train/parameter_server_ranks.h"

namespace lockstep::train {
namespace {

TEST(StrategiesOnDevices, ComeToTheWeightsOfTheCpu) {
  const std::vector<float> expected = weights_of_the_cpu();
  for (const std::string& name : testing::strategies_of_one_process(testing::Stages::kToo)) {
    testing::RecordingDevice first(0), second(1);
    const auto strategy = make_strategy(name, training_of_layers(), {.devices = {&first, &second}});
    EXPECT_LT(largest_difference(train_on(*strategy), expected), kRounding) << name;
    for (testing::RecordingDevice* device : {&first, &second})
      EXPECT_THAT(device->log(), ::testing::Contains(::testing::HasSubstr(
                                     name == "model_parallel" && device == &second ? "linear" : "conv2d")))
          << name << " computes on " << device->name();
  }
}

TEST(StrategiesOnDevices, AWorkerComputesOnItsGpuAndTheServerOnTheCpu) {
  const std::vector<float> expected = weights_of_the_cpu();
  testing::RecordingDevice gpu;
  std::vector<float> weights;
  testing::expect_all_well(testing::run_ranks(2, "shm", [&](const Group& group) {
    StrategyOptions options = options_of(group, {.servers = 1});
    if (group->rank() == 0) options.devices = {&gpu};
    const auto strategy = make_strategy("parameter_server", training_of_layers(), options);
    if (auto* const server = strategy->as<train::ParameterHolder>()) return server->serve();
    weights = train_on(*strategy);
    EXPECT_EQ(strategy->devices().front(), &gpu);
  }));
  EXPECT_LT(largest_difference(weights, expected), kRounding);
}

TEST(StrategiesOnDevices, ClonesComeToTheWeightsOfTheCpu) {
  testing::RecordingDevice first(0), second(1);
  EXPECT_LT(largest_difference(train_clones({&first, &second}), weights_of_the_cpu()), kRounding);
}

TEST(StrategiesOnDevices, PathsOfOneModelLieOnTwoOfThem) {
  testing::RecordingDevice first(0), second(1);
  EXPECT_LT(largest_difference(train_two_paths(first, second), train_two_paths(cpu_device(), cpu_device())), kRounding);
}

}  // namespace
}  // namespace lockstep::train

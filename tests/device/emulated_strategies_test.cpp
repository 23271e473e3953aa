// Each strategy on two simulated GPUs, with the kernels of kernels/cuda run by tests/kernels/emulated_cuda: the weights
// are those of one CPU, up to the order of sums.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/device/strategy_trainings.h"
#include "tests/kernels/emulated_cuda/blocks.h"
#include "tests/kernels/emulated_cuda/table.h"
#include "tests/support/gpu_ranks.h"
#include "tests/support/strategies_of_one_process.h"
#include "tests/train/parameter_server_ranks.h"

namespace lockstep::train {
namespace {

using ::testing::Each;

// Compares the result of `train` on two such GPUs with the CPU's weights.
void expect_weights_of_the_cpu(const std::function<std::vector<float>(Device& first, Device& second)>& train,
                               const std::vector<float>& expected = weights_of_the_cpu()) {
  const testing::RecordedDevicesCompute emulated(testing::emulated_kernels());
  testing::RecordingDevice first(0), second(1);
  const std::size_t before = emulated_cuda::launches();
  EXPECT_LT(largest_difference(train(first, second), expected), kRounding);
  EXPECT_GT(emulated_cuda::launches() - before, 10u) << "CUDA's kernels have run";
}

TEST(EmulatedStrategies, OfOneProcess) {
  for (const std::string& name : testing::strategies_of_one_process(testing::Stages::kToo)) {
    SCOPED_TRACE(name);
    expect_weights_of_the_cpu([&](Device& first, Device& second) {
      return train_on(*make_strategy(name, training_of_layers(), {.devices = {&first, &second}}));
    });
  }
}

TEST(EmulatedStrategies, VariablesOnAGpu) {
  expect_weights_of_the_cpu([](Device& first, Device& second) {
    return train_on(
        *make_strategy("towers", training_of_layers(), {.devices = {&first, &second}, .parameter_device = &second}));
  });
}

TEST(EmulatedStrategies, Deploy) {
  expect_weights_of_the_cpu([](Device& first, Device& second) { return train_clones({&first, &second}); });
}

TEST(EmulatedStrategies, PathsOfOneModel) {
  expect_weights_of_the_cpu([](Device& first, Device& second) { return train_two_paths(first, second); },
                            train_two_paths(cpu_device(), cpu_device()));
}

TEST(EmulatedStrategies, AWorkerOfAParameterServer) {
  expect_weights_of_the_cpu([](Device& gpu, Device&) {
    std::vector<float> weights;
    testing::expect_all_well(testing::run_ranks(2, "shm", [&](const Group& group) {
      StrategyOptions options = options_of(group, {.servers = 1});
      if (group->rank() == 0) options.devices = {&gpu};
      const auto strategy = make_strategy("parameter_server", training_of_layers(), options);
      if (auto* const server = strategy->as<train::ParameterHolder>()) return server->serve();
      weights = train_on(*strategy);
    }));
    return weights;
  });
}

TEST(EmulatedStrategies, OfOneProcessForEachDevice) {
  const std::vector<float> expected = weights_of_the_cpu();
  const testing::RecordedDevicesCompute emulated(testing::emulated_kernels());
  for (const char* name : {"ddp", "zero"}) {
    SCOPED_TRACE(name);
    std::vector<std::vector<float>> weights(2);
    const std::size_t before = emulated_cuda::launches();
    EXPECT_THAT(testing::run_gpu_ranks(2,
                                       [&](auto group, testing::RecordingDevice& gpu) {
                                         const auto strategy =
                                             make_strategy(name, training_of_layers(), {.group = group});
                                         EXPECT_EQ(strategy->devices().front(), &gpu);
                                         manual_seed(11);
                                         const std::int64_t rank = group->rank(), each = kBatch / 2;
                                         set_first_sample(rank * each);
                                         for (int step = 0; step < kFewSteps; ++step) {
                                           const auto batch = batch_of(step);
                                           const Range rows{.start = rank * each, .stop = (rank + 1) * each};
                                           strategy->step(slice(batch.first, 0, rows), slice(batch.second, 0, rows));
                                         }
                                         weights[static_cast<std::size_t>(rank)] = weights_of(strategy->model());
                                       }),
                Each(""));
    EXPECT_LT(largest_difference(weights[0], expected), kRounding);
    EXPECT_EQ(weights[0], weights[1]) << "replicas are equal";
    EXPECT_GT(emulated_cuda::launches() - before, 10u);
  }
}

}  // namespace
}  // namespace lockstep::train

// mirrored on simulated GPUs: NCCL all-reduces the gradients of its threads' devices; parts of one GPU add them by
// copies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "src/comm/threads/thread_group.h"
#include "tests/device/strategy_trainings.h"
#include "tests/support/recording_device.h"

namespace lockstep::train {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// This process's NCCL is the stub, before anything loads it.
[[maybe_unused]] const int kStub = setenv("LOCKSTEP_NCCL_LIBRARY", STUB_NCCL, 0);

// The parts of one GPU.
class PartOfAGpu : public testing::RecordingDevice {
 public:
  using RecordingDevice::RecordingDevice;
  std::string identity() const override { return "GPU-recorded-whole"; }
};

TEST(MirroredOnGpus, ReducesByNccl) {
  const std::vector<float> expected = weights_of_the_cpu();
  for (const int count : {2, 3}) {
    std::vector<std::unique_ptr<testing::RecordingDevice>> gpus;
    StrategyOptions options;
    for (int i = 0; i < count; ++i) {
      gpus.push_back(std::make_unique<testing::RecordingDevice>(i));
      options.devices.push_back(gpus.back().get());
    }
    EXPECT_EQ(ThreadGroup::refusal(options.devices), "");
    const auto strategy = make_strategy("mirrored", training_of_layers(), options);
    EXPECT_LT(largest_difference(train_on(*strategy), expected), kRounding) << count;
    for (nn::Module* replica : strategy->replicas()) EXPECT_EQ(weights_of(*replica), weights_of(strategy->model()));
    for (const auto& gpu : gpus) EXPECT_THAT(gpu->log(), Contains(HasSubstr("ncclAllReduce"))) << gpu->name();
  }
}

TEST(MirroredOnGpus, PartsOfOneGpuAddByCopies) {
  PartOfAGpu first(0), second(1);
  EXPECT_THAT(ThreadGroup::refusal({&first, &second}),
              HasSubstr("cuda:1 is a part of a GPU that another device has a part of"));
  EXPECT_THAT(ThreadGroup::refusal({&first, &cpu_device()}), HasSubstr("devices of different kinds"));
  const std::vector<float> expected = weights_of_the_cpu();
  for (const std::vector<Device*>& devices : {std::vector<Device*>{&first, &second}, {&cpu_device(), &first}}) {
    const auto strategy = make_strategy("mirrored", training_of_layers(), {.devices = devices});
    EXPECT_LT(largest_difference(train_on(*strategy), expected), kRounding);
    for (nn::Module* replica : strategy->replicas()) EXPECT_EQ(weights_of(*replica), weights_of(strategy->model()));
  }
  EXPECT_THAT(first.log(), Not(Contains(HasSubstr("ncclAllReduce"))));
}

TEST(MirroredOnGpus, AFailureOfOneEndsTheStepAndTheNextOneWorks) {
  testing::RecordingDevice first(0), second(1);
  const auto strategy = make_strategy("mirrored", training_of_layers(), {.devices = {&first, &second}});
  const auto batch = batch_of(0);
  Tensor wrong = batch.second.clone();
  strategy->step(batch.first, batch.second);
  EXPECT_THROW(strategy->step(batch.first, reshape(wrong, {kBatch, 1})), Error);
  strategy->step(batch.first, batch.second);
  for (nn::Module* replica : strategy->replicas()) EXPECT_EQ(weights_of(*replica), weights_of(strategy->model()));
}

}  // namespace
}  // namespace lockstep::train

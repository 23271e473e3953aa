// Trainings on a simulated GPU with the kernels of kernels/cuda, run by tests/kernels/emulated_cuda: the kernels get
// the same arguments (places in buckets, sizes, scratch) as on a real GPU. Results equal the CPU's up to the order of
// sums.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/device/trainee.h"
#include "tests/kernels/emulated_cuda/blocks.h"
#include "tests/kernels/emulated_cuda/table.h"

namespace lockstep::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Pair;

void expect_near(const Training& actual, const Training& expected, float bound) {
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < expected.losses.size(); ++i)
    EXPECT_NEAR(actual.losses[i], expected.losses[i], bound) << "loss " << i;
  ASSERT_EQ(actual.weights.size(), expected.weights.size());
  for (std::size_t p = 0; p < expected.weights.size(); ++p)
    for (std::size_t i = 0; i < expected.weights[p].size(); ++i)
      ASSERT_NEAR(actual.weights[p][i], expected.weights[p][i], bound) << "parameter " << p << ", element " << i;
}

TEST(EmulatedKernels, TrainAsTheCpusDo) {
  const RecordedDevicesCompute emulated(emulated_kernels());
  RecordingDevice device;
  const std::size_t before = emulated_cuda::launches();
  const Training there = train_alone(device);
  EXPECT_GT(emulated_cuda::launches() - before, 5u * 15u) << "five steps of a network of seven layers";
  expect_near(there, train_alone(plain_cpu()), 1e-5F);
  EXPECT_EQ(there, train_alone(device)) << "the same bits every time";
}

// The host's work in an eager step: each of these calls costs microseconds, which a small network does not hide.
TEST(EmulatedKernels, AStepAsksForNoMoreThanThis) {
  const RecordedDevicesCompute emulated(emulated_kernels());
  RecordingDevice device;
  const Trainee trainee(group_of_one(device), device);
  trainee.train(2, [&](int) { return trainee.step(); });
  trainee.fill(2);
  device.default_stream().synchronize();
  const std::size_t launches = emulated_cuda::launches(), tensors = device.allocator_stats().cache_hits;
  const EmulatedCalls& calls = emulated_calls();
  const int products = calls.products, convolutions = calls.convolutions, workspaces = calls.workspaces;
  device.clear_log();
  trainee.step();
  device.default_stream().synchronize();
  EXPECT_EQ(emulated_cuda::launches() - launches, 20u);
  EXPECT_EQ(calls.products - products, 6);
  EXPECT_EQ(calls.convolutions - convolutions, 5);
  EXPECT_EQ(calls.workspaces - workspaces, 17);
  EXPECT_THAT(device.counts().scratches, ElementsAre(Pair(0, 17)));
  EXPECT_EQ(device.allocator_stats().cache_hits - tensors, 18u + 17u)
      << "workspaces come from what the allocator keeps, too";
  EXPECT_EQ(device.counts().pool_calls, 0);
}

TEST(EmulatedKernels, RanksStayEqualOverNccl) {
  const RecordedDevicesCompute emulated(emulated_kernels());
  Training there;
  EXPECT_THAT(run_gpu_ranks(2,
                            [&](auto group, RecordingDevice& device) {
                              const Trainee trainee(group, device);
                              const Training result = trainee.train(5, [&](int) { return trainee.step(); });
                              check_replicas_equal(*group, trainee.net->named_parameters(), "weights");
                              if (group->rank() == 0) there = result;
                            }),
              Each(""));
  EXPECT_EQ(there.losses.size(), 5u);
  EXPECT_LT(there.losses.back(), there.losses.front());
}

// Includes skipped steps while the scale is too large.
Training train_in(DType type, bool graphs) {
  RecordingDevice device;
  const Trainee trainee(group_of_one(device), device);
  optim::LossScaler scaler({.initial = 65536 * 1024.0F, .growth_interval = 3});
  optim::SGD sgd(trainee.ddp->parameters(), {.lr = 0.05F, .momentum = 0.9F, .loss_scaler = &scaler});
  const auto step = [&] { return scaled_step(trainee, type, scaler, sgd); };
  CapturedStep captured = trainee.ddp->capture(step, {.warm_up = 2});
  const Training result = trainee.train(8, [&](int) { return graphs ? captured() : step(); });
  EXPECT_EQ(scaler.skipped_steps() > 0, type == DType::kFloat16) << "bfloat16 has float's range";
  return result;
}

TEST(EmulatedKernels, TrainIn16BitsAsTheCpusDoAndInGraphsToTheBit) {
  for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
    const Training expected = train_in(type, false);
    const RecordedDevicesCompute emulated(emulated_kernels());
    const Training there = train_in(type, false);
    expect_near(there, expected, type == DType::kFloat16 ? 5e-3F : 4e-2F);
    EXPECT_EQ(there, train_in(type, true)) << name_of(type);
  }
}

}  // namespace
}  // namespace lockstep::testing

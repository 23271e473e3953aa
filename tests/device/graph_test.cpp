// Graph mode: when a step is recorded, and what a replay repeats.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "lockstep/autograd/autocast.h"
#include "lockstep/optim/loss_scaler.h"
#include "tests/device/trainee.h"
#include "tests/support/heap_count.h"
#include "tests/support/message_of.h"

namespace lockstep::testing {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(GraphMode, ReplaysAreTheStepsAsWrittenBitForBit) {
  RecordingDevice device;
  const auto group = group_of_one(device);
  Training expected, replayed;
  {
    const Trainee trainee(group, device);
    expected = trainee.train(8, [&](int) { return trainee.step(); });
  }
  const Trainee trainee(group, device);
  CapturedStep step = trainee.captured();
  device.clear_log();
  replayed = trainee.train(8, [&](int) { return step(); });
  EXPECT_EQ(replayed, expected);
  expect_counts(step, 3, 1, 4);
  EXPECT_EQ(device.counts().captures, 1);
  EXPECT_EQ(device.counts().launches, 5) << "what was recorded runs when it is launched, the first time too";
}

TEST(GraphMode, AReplayChangesTheWeightsAsAStepDoes) {
  RecordingDevice device;
  const Trainee trainee(group_of_one(device), device);
  CapturedStep step = trainee.captured();
  trainee.train(5, [&](int) { return step(); });
  const Tensor early = nn::cross_entropy((*trainee.net)(trainee.images), trainee.labels);
  step();
  EXPECT_GE(step.counts().replayed, 1U);
  EXPECT_THAT(message_of([&] { early.backward(); }), HasSubstr("was changed after"));
}

TEST(GraphMode, SeveralRanksRecordTheirAllReducesWithTheStep) {
  EXPECT_THAT(run_gpu_ranks(2,
                            [&](auto group, RecordingDevice& device) {
                              Training expected;
                              {
                                const Trainee trainee(group, device);
                                expected = trainee.train(8, [&](int) { return trainee.step(); });
                              }
                              const Trainee trainee(group, device);
                              CapturedStep step = trainee.captured({.warm_up = 2});
                              device.default_stream().synchronize();
                              device.clear_log();
                              EXPECT_EQ(trainee.train(8, [&](int) { return step(); }), expected);
                              expect_counts(step, 2, 1, 5);
                              check_replicas_equal(*group, trainee.net->named_parameters(), "weights");

                              // In the graph as outside: buckets are sent while backward is queued, and the optimizer
                              // waits for the last one.
                              std::vector<std::string> graph;
                              for (const std::string& line : device.log())
                                if (line.find("captured") == 0) graph.push_back(line);
                              const auto place = [&](const std::string& part, bool of_last) {
                                std::size_t found = graph.size();
                                for (std::size_t i = 0; i < graph.size() && (of_last || found == graph.size()); ++i)
                                  if (graph[i].find(part) != std::string::npos) found = i;
                                return found;
                              };
                              ASSERT_LT(place("ncclAllReduce", true), graph.size());
                              EXPECT_LT(place("ncclAllReduce", false), place("conv2d_backward_weights", true));
                              EXPECT_LT(place("ncclAllReduce", true), place("sgd_step", false));
                              EXPECT_LT(place("stream 0: wait", true), place("sgd_step", false));
                            }),
              Each(""));
}

TEST(GraphMode, ARateOfOneRankIsNamedByAReplay) {
  const auto failures = run_gpu_ranks(2, [&](auto group, RecordingDevice& device) {
    const Trainee trainee(group, device);
    CapturedStep step = trainee.captured({.warm_up = 1});
    trainee.train(6, [&](int) { return step(); });
    EXPECT_GE(step.counts().replayed, 2U);
    if (group->rank() == 1) trainee.sgd->set_lr(0.0625F);
    trainee.train(2, [&](int) { return step(); });
    group->barrier({.device = DeviceKind::kCuda});  // after the replays, which are compared next to the host
  });
  EXPECT_THAT(failures, Each(HasSubstr("0.0625 on rank 1")));
}

TEST(GraphMode, AGroupThatIsOverLaunchesNothing) {
  EXPECT_THAT(run_gpu_ranks(2,
                            [&](auto group, RecordingDevice& device) {
                              const Trainee trainee(group, device);
                              CapturedStep step = trainee.captured({.warm_up = 1});
                              trainee.train(4, [&](int) { return step(); });
                              group->barrier();
                              if (group->rank() == 1) return group->abort("enough");
                              // The host's calls and the GPU's learn of the end one after the other.
                              for (const DeviceKind memory : {DeviceKind::kCpu, DeviceKind::kCuda})
                                EXPECT_THAT(message_of([&] {
                                              for (;;) group->barrier({.device = memory});
                                            }),
                                            HasSubstr("enough"));
                              device.clear_log();
                              EXPECT_THAT(message_of([&] { step(); }), HasSubstr("enough"));
                              EXPECT_EQ(device.counts().launches, 0);
                            }),
              Each(""));
}

TEST(GraphMode, AReplayMakesNoHostWaitAndTakesNoMemory) {
  EXPECT_THAT(run_gpu_ranks(2,
                            [&](auto group, RecordingDevice& device) {
                              const Trainee trainee(group, device);
                              CapturedStep step = trainee.captured();
                              trainee.train(5, [&](int) { return step(); });
                              EXPECT_EQ(device.counts().allocation_nodes, 0) << "the graph has nodes that take memory";
                              const AllocatorStats before = device.allocator_stats();
                              device.default_stream().synchronize();
                              device.clear_log();
                              device.hold_default_stream();
                              Tensor loss;
                              for (int number = 0; number < 3; ++number) loss = step();
                              EXPECT_EQ(device.counts().host_waits, 0);
                              EXPECT_EQ(device.counts().launches, 3);
                              EXPECT_THAT(device.log(), Not(Contains(HasSubstr("conv2d"))));
                              group->barrier();  // all ranks are through, and no device has begun
                              device.release_default_stream();
                              EXPECT_GT(loss.item(), 0);
                              EXPECT_EQ(device.counts().pool_calls, 0);
                              EXPECT_EQ(device.allocator_stats().system_allocations, before.system_allocations);
                              EXPECT_EQ(device.allocator_stats().bytes_in_use, before.bytes_in_use);
                            }),
              Each(""));
}

// Checking whether the recording is still valid allocates nothing, whatever the number of parameters; only the handle
// of its collectives is allocated, and the recording device's notes about any graph.
TEST(GraphMode, AReplayAllocatesTheHandleOfItsCollectivesAlone) {
  const auto allocations = [](auto&& launch) {
    launch();
    const std::size_t before = test_support::heap_allocations_by_thread();
    for (int number = 0; number < 20; ++number) launch();
    return test_support::heap_allocations_by_thread() - before;
  };
  RecordingDevice device;
  Stream& stream = device.default_stream();
  const Tensor cell = Tensor::zeros({1}, DType::kFloat32, device);
  device.begin_capture(stream);
  device.kernels().fill(cell, 1, stream);
  const std::unique_ptr<Graph> plain = device.end_capture(stream);
  const std::size_t by_the_device = allocations([&] { plain->launch(stream); });
  EXPECT_GT(by_the_device, 0U) << "nothing is counted";

  const Trainee trainee(group_of_one(device), device);
  CapturedStep step = trainee.captured({.warm_up = 1});
  trainee.fill(0);
  for (int number = 0; number < 5; ++number) step();
  EXPECT_LE(allocations([&] { step(); }), by_the_device + 20 * 4);
}

TEST(GraphMode, TheResultIsOneTensorThatEachReplayOverwrites) {
  RecordingDevice device;
  const Trainee trainee(group_of_one(device), device);
  CapturedStep step = trainee.captured({.warm_up = 1});
  trainee.fill(0);
  step();
  const Tensor recorded = step();
  const float first = recorded.item();
  const Tensor replayed = step();
  EXPECT_EQ(replayed.buffer().data(), recorded.buffer().data());
  EXPECT_NE(recorded.item(), first);
}

// Results computed in a graph stay readable after the graph is destroyed and its memory is reused.
TEST(GraphMode, TheGraphsMemoryComesBack) {
  RecordingDevice device;
  const Trainee trainee(group_of_one(device), device);
  Tensor loss;
  trainee.fill(0);
  const auto run = [&] {
    CapturedStep step = trainee.captured({.warm_up = 1});
    for (int number = 0; number < 3; ++number) loss = step();
  };
  run();
  const float value = loss.item();
  EXPECT_GT(value, 0);
  const std::size_t in_use = device.allocator_stats().bytes_in_use;
  for (int i = 0; i < 5; ++i) run();
  EXPECT_EQ(device.allocator_stats().bytes_in_use, in_use);
}

TEST(GraphMode, ARateThatChangesInEveryStepStaysInTheGraph) {
  RecordingDevice device;
  const auto group = group_of_one(device);
  const auto schedule = [](const Trainee& trainee, int number) {
    trainee.sgd->set_lr(0.05F / static_cast<float>(1 + number));
  };
  Training expected;
  {
    const Trainee trainee(group, device);
    expected = trainee.train(9, [&](int number) { return schedule(trainee, number), trainee.step(); });
  }
  const Trainee trainee(group, device);
  CapturedStep step = trainee.captured();
  EXPECT_EQ(trainee.train(9, [&](int number) { return schedule(trainee, number), step(); }), expected);
  expect_counts(step, 3, 1, 5);
}

// The device may be steps behind: setting a learning rate does not affect steps that were queued before.
TEST(GraphMode, ARateHoldsFromTheNextStepOn) {
  const auto train = [](bool held) {
    RecordingDevice device;
    const Trainee trainee(group_of_one(device), device);
    CapturedStep step = trainee.captured({.warm_up = 1});
    trainee.fill(0);
    step();
    if (held) device.hold_default_stream();
    for (const float rate : {0.05F, 0.01F, 0.2F}) {
      trainee.sgd->set_lr(rate);
      step();
    }
    if (held) device.release_default_stream();
    return weights_of(*trainee.net);
  };
  EXPECT_EQ(train(true), train(false));
}

TEST(GraphMode, RefusesToChangeTheRateInWhatIsRecorded) {
  RecordingDevice device;
  const Trainee trainee(group_of_one(device), device);
  int number = 0;
  CapturedStep step = trainee.ddp->capture(
      [&] {
        trainee.sgd->set_lr(0.05F / static_cast<float>(++number));
        return trainee.step();
      },
      {.warm_up = 1});
  trainee.fill(0);
  step();
  EXPECT_THAT(message_of([&] { step(); }),
              ::testing::HasSubstr("SGD::set_lr: a graph would repeat lr 0.025 in every step"));
}

TEST(GraphMode, WhatTheHostDecidedOtherwiseIsNotReplayed) {
  RecordingDevice device;
  const Trainee trainee(group_of_one(device), device);
  CapturedStep step = trainee.captured({.warm_up = 1});
  trainee.fill(0);
  step();
  step();
  step();
  expect_counts(step, 1, 1, 1);
  trainee.net->train(false);
  step();
  expect_counts(step, 2, 1, 1);
  step();
  expect_counts(step, 2, 2, 1);
  {
    const auto no_sync = trainee.ddp->no_sync();
    step();
  }
  expect_counts(step, 3, 2, 1);
  step();  // outside no_sync() again
  expect_counts(step, 4, 2, 1);
  const Tensor weight = trainee.net->parameters()[0];
  weight.rebind(weight.clone().buffer());
  step();
  expect_counts(step, 5, 2, 1);
}

// 16-bit operators, and a loss scale that is kept on the device: the host takes no part in it, including skipped steps.
TEST(GraphMode, MixedPrecisionWithItsLossScaleIsReplayed) {
  const auto train = [](bool graphs) {
    RecordingDevice device;
    const Trainee trainee(group_of_one(device), device);
    // Too large at first: steps are skipped.
    optim::LossScaler scaler({.initial = 65536 * 1024.0F, .growth_interval = 3});
    optim::SGD sgd(trainee.ddp->parameters(), {.lr = 0.05F, .momentum = 0.9F, .loss_scaler = &scaler});
    const auto step = [&] { return scaled_step(trainee, DType::kFloat16, scaler, sgd); };
    CapturedStep captured = trainee.ddp->capture(step, {.warm_up = 2});
    const Training result = trainee.train(10, [&](int) { return graphs ? captured() : step(); });
    EXPECT_EQ(captured.counts().replayed, graphs ? 7u : 0u);
    EXPECT_GT(scaler.skipped_steps(), 0);
    EXPECT_LT(scaler.skipped_steps(), 10);
    return std::tuple(result, scaler.value(), scaler.skipped_steps());
  };
  EXPECT_EQ(train(true), train(false));
}

TEST(GraphMode, AnAutoCastAroundTheCallIsNotReplayedWithoutIt) {
  RecordingDevice device;
  const Trainee trainee(group_of_one(device), device);
  CapturedStep step = trainee.captured({.warm_up = 1});
  trainee.fill(0);
  for (int number = 0; number < 3; ++number) step();
  expect_counts(step, 1, 1, 1);
  const AutoCast half(DType::kBFloat16);
  step();
  expect_counts(step, 2, 1, 1);
}

// A step that leaves the update to its caller: whether gradients add up depends on what was cleared outside.
TEST(GraphMode, GradientsAddUpInAReplayAsTheyDoAsWritten) {
  const auto train = [](bool graphs, bool clears) {
    RecordingDevice device;
    const Trainee trainee(group_of_one(device), device);
    const auto pass = [&] {
      const Tensor loss = nn::cross_entropy((*trainee.ddp)(trainee.images), trainee.labels);
      loss.backward();
      return loss;
    };
    CapturedStep captured = trainee.ddp->capture(pass, {.warm_up = 2});
    for (int number = 0; number < 6; ++number) {
      trainee.fill(number);
      if (clears) trainee.sgd->zero_grad();
      graphs ? captured() : pass();
      trainee.sgd->step();
    }
    EXPECT_EQ(captured.counts().replayed, graphs ? 3u : 0u);
    return weights_of(*trainee.net);
  };
  EXPECT_EQ(train(true, true), train(false, true));
  EXPECT_EQ(train(true, false), train(false, false));
  EXPECT_NE(train(false, true), train(false, false));
}

}  // namespace
}  // namespace lockstep::testing

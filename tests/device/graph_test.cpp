// Graph mode: when a step is recorded, what a replay repeats, and what is refused with which reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "lockstep/autograd/autocast.h"
#include "lockstep/ddp/ddp.h"
#include "lockstep/optim/loss_scaler.h"
#include "tests/support/device_training.h"
#include "tests/support/gpu_ranks.h"
#include "tests/support/message_of.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

// A training whose batches are copied into tensors that stay.
struct Trainee {
  Trainee(const std::shared_ptr<ProcessGroup>& group, Device& device)
      : group(group),
        device(device),
        images(Tensor::empty(kImages, DType::kFloat32, device)),
        labels(Tensor::empty({kImages[0]}, DType::kInt64, device)) {
    manual_seed(3);
    net = std::make_unique<SmallNet>();
    net->to(device);
    ddp = std::make_unique<DistributedDataParallel>(*net, group, DistributedDataParallelOptions{.caps = {256, 512}});
    sgd = std::make_unique<optim::SGD>(ddp->parameters(), optim::SGDOptions{.lr = 0.05F, .momentum = 0.9F});
  }
  void fill(int number) const {
    const data::Batch batch = small_batch(number * group->world_size() + group->rank());
    images.copy_from(batch.inputs);
    labels.copy_from(batch.targets);
  }
  Tensor step() const {
    return train_step([&](const Tensor& x) { return (*ddp)(x); }, *sgd, {images, labels});
  }
  CapturedStep captured(const CaptureOptions& options = {}) const {
    return ddp->capture([this] { return step(); }, options);
  }
  // Losses and weights after `steps` calls of `each`.
  template <typename Step>
  Training train(int steps, Step&& each) const {
    Training result;
    for (int number = 0; number < steps; ++number) {
      fill(number);
      result.losses.push_back(each(number).item());
    }
    result.weights = weights_of(*net);
    return result;
  }

  std::shared_ptr<ProcessGroup> group;
  Device& device;
  Tensor images, labels;
  std::unique_ptr<SmallNet> net;
  std::unique_ptr<DistributedDataParallel> ddp;
  std::unique_ptr<optim::SGD> sgd;
};

void expect_counts(const CapturedStep& step, std::size_t as_written, std::size_t recorded, std::size_t replayed) {
  EXPECT_EQ(step.counts().as_written, as_written);
  EXPECT_EQ(step.counts().recorded, recorded);
  EXPECT_EQ(step.counts().replayed, replayed);
}

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

                              // In the graph as outside: buckets leave while backward is queued, the optimizer is behind the last.
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

TEST(GraphMode, AReplayMakesNoHostWaitAndTakesNoMemory) {
  EXPECT_THAT(run_gpu_ranks(2,
                            [&](auto group, RecordingDevice& device) {
                              const Trainee trainee(group, device);
                              CapturedStep step = trainee.captured();
                              trainee.train(5, [&](int) { return step(); });
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
                              EXPECT_EQ(device.allocator_stats().system_allocations, before.system_allocations);
                              EXPECT_EQ(device.allocator_stats().bytes_in_use, before.bytes_in_use);
                            }),
              Each(""));
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

// What was computed in a graph stays readable when the graph has gone, and its memory is used again.
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

TEST(GraphMode, ARateThatChangesNowAndThenIsRecordedAnew) {
  RecordingDevice device;
  const auto group = group_of_one(device);
  const auto schedule = [](const Trainee& trainee, int number) { trainee.sgd->set_lr(number < 6 ? 0.05F : 0.01F); };
  Training expected;
  {
    const Trainee trainee(group, device);
    expected = trainee.train(12, [&](int number) { return schedule(trainee, number), trainee.step(); });
  }
  const Trainee trainee(group, device);
  CapturedStep step = trainee.captured();
  EXPECT_EQ(trainee.train(12, [&](int number) { return schedule(trainee, number), step(); }), expected);
  // 0 1 2 as written, 3 recorded, 4 5 replayed; 6 as written, 7 recorded, 8 to 11 replayed.
  expect_counts(step, 4, 2, 6);
}

TEST(GraphMode, ARateThatChangesInEveryStepNeverGetsToAGraph) {
  RecordingDevice device;
  const auto group = group_of_one(device);
  const auto schedule = [](const Trainee& trainee, int number) { trainee.sgd->set_lr(0.05F / static_cast<float>(1 + number)); };
  Training expected;
  {
    const Trainee trainee(group, device);
    expected = trainee.train(7, [&](int number) { return schedule(trainee, number), trainee.step(); });
  }
  const Trainee trainee(group, device);
  CapturedStep step = trainee.captured();
  EXPECT_EQ(trainee.train(7, [&](int number) { return schedule(trainee, number), step(); }), expected);
  expect_counts(step, 7, 0, 0);
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

// 16-bit operators, and a loss scale that lives on the device: nothing of it is the host's, skipped steps included.
TEST(GraphMode, MixedPrecisionWithItsLossScaleIsReplayed) {
  const auto train = [](bool graphs) {
    RecordingDevice device;
    const Trainee trainee(group_of_one(device), device);
    optim::LossScaler scaler({.initial = 65536 * 1024.0F, .growth_interval = 3});  // too large at first: steps are skipped
    optim::SGD sgd(trainee.ddp->parameters(), {.lr = 0.05F, .momentum = 0.9F, .loss_scaler = &scaler});
    const auto step = [&] {
      const AutoCast half(DType::kFloat16);
      const Tensor loss = nn::cross_entropy((*trainee.ddp)(trainee.images), trainee.labels);
      sgd.zero_grad();
      scaler.scale(loss).backward();
      sgd.step();
      return loss;
    };
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

// A step that leaves the update to its caller: whether gradients add up is decided by what was cleared outside.
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

// -- what cannot be recorded

TEST(GraphMode, RefusesTheCpuAndStepsThatAreNone) {
  const Trainee trainee(ProcessGroup::create({0, 1, 0, 1}, std::make_shared<TableStore>(), "token", {.device = &cpu_device()}),
                        cpu_device());
  EXPECT_THAT(message_of([&] { trainee.captured(); }), AllOf(HasSubstr("capture: the model is on the CPU"), HasSubstr("directly")));
  RecordingDevice device;
  const Trainee there(group_of_one(device), device);
  EXPECT_THAT(message_of([&] { there.captured({.warm_up = 0}); }), HasSubstr("capture: warm_up is 0"));
  EXPECT_THAT(message_of([&] { there.ddp->capture({}); }), HasSubstr("capture: the step is an empty function"));
}

// The step is refused when it is to be recorded; nothing of it has run, and as written it still does.
void expect_refusal(const std::function<Tensor(const Trainee&)>& step, const std::string& reason) {
  RecordingDevice device;
  const Trainee trainee(group_of_one(device), device);
  trainee.fill(0);
  CapturedStep captured = trainee.ddp->capture([&] { return step(trainee); }, {.warm_up = 1});
  captured();
  const auto before = weights_of(*trainee.net);
  EXPECT_THAT(message_of([&] { captured(); }), AllOf(HasSubstr("capture: the step cannot be recorded as a graph: "), HasSubstr(reason)));
  EXPECT_EQ(weights_of(*trainee.net), before);
  EXPECT_GT(step(trainee).item(), 0) << "as written it goes on";
  EXPECT_NE(weights_of(*trainee.net), before);
  expect_counts(captured, 1, 0, 0);
}

TEST(GraphMode, RefusesAStepThatReadsAValue) {
  expect_refusal(
      [](const Trainee& trainee) {
        const Tensor loss = trainee.step();
        if (loss.item() > 1e6F) throw Error("diverged");
        return loss;
      },
      "Tensor::item: the step is being recorded as a graph, and the values of this tensor of shape () on cuda:0 do not exist yet");
}

TEST(GraphMode, RefusesAStepThatCopiesFromTheDeviceOrToIt) {
  expect_refusal(
      [](const Trainee& trainee) {
        const Tensor loss = trainee.step();
        loss.to(cpu_device());
        return loss;
      },
      "Tensor::copy_from: the step is being recorded");
  expect_refusal([](const Trainee& trainee) { return trainee.fill(1), trainee.step(); },
                 "copy them into a tensor of the device before the step");
}

TEST(GraphMode, RefusesAStepThatWaitsForTheDevice) {
  expect_refusal(
      [](const Trainee& trainee) {
        trainee.device.default_stream().synchronize();
        return trainee.step();
      },
      "the host cannot wait for work that is recorded as a graph");
}

TEST(GraphMode, RefusesAStepWithoutAResultOnTheDevice) {
  RecordingDevice device;
  const Trainee trainee(group_of_one(device), device);
  trainee.fill(0);
  CapturedStep nothing = trainee.ddp->capture([&] { return trainee.step(), Tensor(); });
  EXPECT_THAT(message_of([&] { nothing(); }), HasSubstr("the step returned an undefined tensor: return its loss"));
  CapturedStep elsewhere = trainee.ddp->capture([&] { return trainee.step(), Tensor::zeros({}); }, {.warm_up = 1});
  elsewhere();
  EXPECT_THAT(message_of([&] { elsewhere(); }), HasSubstr("the result is on cpu, the model on cuda:0"));
}

TEST(GraphMode, RefusesCollectivesThatWaitOrRunOnTheHost) {
  EXPECT_THAT(run_gpu_ranks(2,
                            [&](auto group, RecordingDevice& device) {
                              const Trainee trainee(group, device);
                              CapturedStep step = trainee.ddp->capture(
                                  [&] {
                                    const Tensor loss = trainee.step();
                                    group->all_reduce(loss.data<float>(), 1, DType::kFloat32, ReduceOp::kAvg,
                                                      {.device = DeviceKind::kCuda});
                                    return loss;
                                  },
                                  {.warm_up = 1});
                              trainee.fill(0);
                              step();
                              EXPECT_THAT(message_of([&] { step(); }), AllOf(HasSubstr("capture:"), HasSubstr("asynchronous")));
                              CapturedStep texts =
                                  trainee.ddp->capture([&] { return group->broadcast_text("a", 0), trainee.step(); }, {.warm_up = 1});
                              texts();
                              EXPECT_THAT(message_of([&] { texts(); }), AllOf(HasSubstr("capture:"), HasSubstr("host's memory")));
                              EXPECT_GT(trainee.step().item(), 0) << "as written it goes on";
                            }),
              Each(""));
}

TEST(GraphMode, RanksThatRecordDifferentStepsAreTold) {
  const auto said = run_gpu_ranks(2, [&](auto group, RecordingDevice& device) {
    const Trainee trainee(group, device);
    CapturedStep step = trainee.ddp->capture(
        [&] {
          const Tensor loss = trainee.step();
          if (group->rank() == 1 && device.default_stream().is_capturing())
            group->all_reduce_async(loss.data<float>(), 1, DType::kFloat32, ReduceOp::kAvg, {.device = DeviceKind::kCuda})
                .order_before(device.default_stream());
          return loss;
        },
        {.warm_up = 1});
    trainee.fill(0);
    step();
    step();
  });
  EXPECT_THAT(said, Each(HasSubstr("captured graph")));
}

}  // namespace
}  // namespace lockstep::testing

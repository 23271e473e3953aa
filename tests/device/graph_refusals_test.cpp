// Graph mode: a step that cannot be recorded is rejected with the reason, and can still run eagerly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/device/trainee.h"
#include "tests/support/message_of.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

TEST(GraphMode, RefusesTheCpuAndStepsThatAreNone) {
  const Trainee trainee(
      ProcessGroup::create({0, 1, 0, 1}, std::make_shared<TableStore>(), "token", {.device = &cpu_device()}),
      cpu_device());
  EXPECT_THAT(message_of([&] { trainee.captured(); }),
              AllOf(HasSubstr("capture: the model is on the CPU"), HasSubstr("directly")));
  RecordingDevice device;
  const Trainee there(group_of_one(device), device);
  EXPECT_THAT(message_of([&] { there.captured({.warm_up = 0}); }), HasSubstr("capture: warm_up is 0"));
  EXPECT_THAT(message_of([&] { there.ddp->capture({}); }), HasSubstr("capture: the step is an empty function"));
}

TEST(GraphMode, RefusesStepsWithAWeightAndStepsInJoin) {
  RecordingDevice device;
  const Trainee trainee(group_of_one(device), device);
  trainee.fill(0);
  CapturedStep step = trainee.captured({.warm_up = 1});
  const auto refusal =
      AllOf(HasSubstr("capture: set_weight() and join() exchange data"), HasSubstr("call the step directly"));
  for (int calls = 0; calls < 3; ++calls) {  // eager, recorded, replayed
    trainee.ddp->set_weight(8);
    EXPECT_THAT(message_of([&] { step(); }), refusal);
    EXPECT_GT(trainee.step().item(), 0) << "directly it runs, and takes the weight";
    trainee.ddp->join([&] { EXPECT_THAT(message_of([&] { step(); }), refusal); });
    step();
  }
  expect_counts(step, 1, 1, 1);
}

// The step is rejected when it is to be recorded; nothing of it has run, and eagerly it still does.
void expect_refusal(const std::function<Tensor(const Trainee&)>& step, const std::string& reason) {
  RecordingDevice device;
  const Trainee trainee(group_of_one(device), device);
  trainee.fill(0);
  CapturedStep captured = trainee.ddp->capture([&] { return step(trainee); }, {.warm_up = 1});
  captured();
  const auto before = weights_of(*trainee.net);
  EXPECT_THAT(message_of([&] { captured(); }),
              AllOf(HasSubstr("capture: the step cannot be recorded as a graph: "), HasSubstr(reason)));
  EXPECT_EQ(weights_of(*trainee.net), before);
  EXPECT_GT(step(trainee).item(), 0) << "eagerly it continues";
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
      "Tensor::item: the step is being recorded as a graph, so the values of this tensor of shape () on cuda:0 do not "
      "exist yet");
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
  EXPECT_THAT(message_of([&] { elsewhere(); }), HasSubstr("the result is on cpu, but the model is on cuda:0"));
}

TEST(GraphMode, RefusesCollectivesThatWaitOrRunOnTheHost) {
  EXPECT_THAT(run_gpu_ranks(
                  2,
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
                    CapturedStep texts = trainee.ddp->capture(
                        [&] { return group->broadcast_text("a", 0), trainee.step(); }, {.warm_up = 1});
                    texts();
                    EXPECT_THAT(message_of([&] { texts(); }), AllOf(HasSubstr("capture:"), HasSubstr("host's memory")));
                    EXPECT_GT(trainee.step().item(), 0) << "eagerly it continues";
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
            group
                ->all_reduce_async(loss.data<float>(), 1, DType::kFloat32, ReduceOp::kAvg,
                                   {.device = DeviceKind::kCuda})
                .stream_wait(device.default_stream());
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

// Optimizers on a simulated GPU: step counters are kept on the device, so that a recorded step keeps counting.
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "lockstep/optim/adam.h"
#include "lockstep/optim/clip.h"
#include "lockstep/optim/ema.h"
#include "tests/device/trainee.h"
#include "tests/optim/every_optimizer.h"
#include "tests/support/recording_device.h"

namespace lockstep::testing {
namespace {

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(std::vector<NamedTensor>, optim::LossScaler*)>;

struct Whole {
  Whole(const std::shared_ptr<ProcessGroup>& group, Device& device, const MakeOptimizer& make)
      : trainee(group, device), optimizer(make(trainee.ddp->parameters(), &scaler)) {}
  Tensor step() {
    optimizer->zero_grad();
    const Tensor loss = nn::cross_entropy((*trainee.ddp)(trainee.images), trainee.labels);
    scaler.scale(loss).backward();
    optim::clip_grad_norm(trainee.ddp->parameters(), 0.5F, {.loss_scaler = &scaler});
    optimizer->step();
    ema.update();
    return loss;
  }
  std::vector<std::vector<float>> averages() {
    std::vector<std::vector<float>> all;
    for (const auto& [name, tensor] : ema.state())
      if (tensor.dtype() == DType::kFloat32) all.push_back(values_of(tensor));
    return all;
  }

  Trainee trainee;
  optim::LossScaler scaler{{.initial = 16, .growth_interval = 3}};
  std::unique_ptr<optim::Optimizer> optimizer;
  optim::ExponentialMovingAverage ema{trainee.ddp->parameters(), {.decay = 0.9}};
};

TEST(DeviceOptimizers, ARecordedStepCountsOnAndIsTheEagerOneBitForBit) {
  for (const optim::OptimizerCase& each : optim::every_optimizer()) {
    if (!optim::counts_steps(each)) continue;
    SCOPED_TRACE(each.name);
    const MakeOptimizer& make_one = each.make;
    RecordingDevice device;
    const auto group = group_of_one(device);
    Training expected;
    std::vector<std::vector<float>> averages;
    {
      Whole eager(group, device, make_one);
      expected = eager.trainee.train(9, [&](int number) {
        eager.optimizer->set_lr(0.01F / static_cast<float>(1 + number));
        return eager.step();
      });
      averages = eager.averages();
    }
    Whole graph(group, device, make_one);
    CapturedStep step = graph.trainee.ddp->capture([&] { return graph.step(); });
    EXPECT_EQ(graph.trainee.train(9,
                                  [&](int number) {
                                    graph.optimizer->set_lr(0.01F / static_cast<float>(1 + number));
                                    return step();
                                  }),
              expected);
    EXPECT_EQ(graph.averages(), averages);
    expect_counts(step, 3, 1, 5);
  }
}

TEST(DeviceOptimizers, StateAndAveragesFollowAModuleThatMoves) {
  const auto train = [](bool moves) {
    RecordingDevice device;
    manual_seed(3);
    SmallNet net;
    optim::Adam adam(net.named_parameters(), {.lr = 0.01F});
    optim::ExponentialMovingAverage ema(net.named_parameters());
    for (int number = 0; number < 6; ++number) {
      if (number == 0 || (moves && number == 4)) net.to(plain_cpu());
      if (moves && number == 2) net.to(device);
      Device& where = net.parameters().front().device();
      const data::Batch batch = small_batch(number);
      train_step([&](const Tensor& x) { return net(x); }, adam, {batch.inputs().to(where), batch.targets().to(where)});
      ema.update();
    }
    auto all = weights_of(net);
    for (const auto& [name, tensor] : ema.state())
      if (tensor.dtype() == DType::kFloat32) all.push_back(values_of(tensor));
    net.to(cpu_device());
    return all;
  };
  EXPECT_EQ(train(true), train(false));
}

}  // namespace
}  // namespace lockstep::testing

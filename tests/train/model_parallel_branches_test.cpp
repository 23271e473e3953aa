// model_parallel with nn::Branches: the branches of a stage compute at the same time on their devices, and the bits are
// those of one device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <limits>
#include <thread>

#include "lockstep/nn/branches.h"
#include "src/train/strategies/model_parallel/stage_devices.h"
#include "tests/ddp/ranks.h"
#include "tests/support/message_of.h"
#include "tests/train/strategy_training.h"

namespace lockstep::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

// Functions that a branch calls in its forward and backward, with its number.
struct Calls {
  std::function<void(std::size_t)> forward, backward;
};

// A branch that draws, adds a loss, and calls.
struct CallingBranch : nn::Module {
  nn::Linear linear{16, 8, {.activation = Activation::kReLU}};
  std::size_t number;
  Calls calls;
  HookHandle hook;
  CallingBranch(std::size_t number, Calls calls) : number(number), calls(std::move(calls)) { add("linear", linear); }
  Tensor forward(const Tensor& x) override {
    if (calls.forward) calls.forward(number);
    nn::add_loss(1e-3F * l2_loss(linear.weight), "penalty");
    const Tensor y = dropout(linear(x), 0.25F, is_training());
    if (calls.backward && requires_grad(y))
      hook = register_result_grad_hook(y, [this](const Tensor&) { calls.backward(number); });
    return y;
  }
};

// stem, branches, head.
Training branching_training(std::size_t branches = 2, const Calls& calls = {}) {
  Training training = training_of_net();
  training.model = [branches, calls] {
    manual_seed(7);
    auto net = std::make_unique<nn::Sequential>();
    net->append<nn::Flatten>();
    net->append_named<nn::Linear>("stem", 72, 16, nn::LinearLayerOptions{.activation = Activation::kReLU});
    auto& towers = net->append_named<nn::Branches>("towers");
    for (std::size_t b = 0; b < branches; ++b) towers.append<CallingBranch>(b, calls);
    net->append_named<nn::Linear>("head", static_cast<std::int64_t>(8 * branches), 3);
    return net;
  };
  return training;
}

struct BranchingRun {
  std::vector<float> weights;
  float last_loss = 0;
  RandomState random;
};

BranchingRun run_branching(Strategy& strategy, int steps = kSteps) {
  manual_seed(11);
  BranchingRun run;
  for (int step = 0; step < steps; ++step) {
    const auto batch = batch_of(step);
    run.last_loss = strategy.step(batch.first, batch.second);
  }
  run.random = random_state();
  run.weights = weights_of(strategy.model());
  return run;
}

std::unique_ptr<Strategy> branching_pipeline(const Training& training, StrategyOptions options, int micro_batches = 0,
                                             std::vector<int> stage_layers = {}) {
  options.micro_batches = micro_batches;
  options.stage_layers = std::move(stage_layers);
  return make_strategy("model_parallel", training, options);
}

TEST(ModelParallelBranches, HaveTheBitsOfOneDevice) {
  for (const std::size_t branches : {2u, 3u}) {
    const Training training = branching_training(branches);
    const BranchingRun one = run_branching(*make_strategy("mirrored", training, on_cpus(0, 1)));
    EXPECT_GT(largest_difference(one.weights, weights_of(*training.model())), 0.01F);
    for (int devices = 1; devices <= static_cast<int>(branches); ++devices) {
      const auto strategy = branching_pipeline(training, on_cpus(0, devices));
      const BranchingRun run = run_branching(*strategy);
      EXPECT_EQ(run.weights, one.weights) << devices << " devices";
      EXPECT_NEAR(run.last_loss, one.last_loss, 1e-6F) << "stages add up the losses in another order";
      EXPECT_EQ(run.random, one.random);
      EXPECT_EQ(strategy->as<PipelineStages>()->bubble().stages, 1);
      EXPECT_EQ(strategy->optimizers().size(), static_cast<std::size_t>(devices));
    }
  }
}

TEST(ModelParallelBranches, PassMicroBatchesThroughStagesOfSeveralDevices) {
  const Training training = branching_training();
  for (const auto& layers : {std::vector{2, 2}, {3, 1}}) {
    const BranchingRun one = run_branching(*branching_pipeline(training, on_cpus(0, 2), 4, layers));
    const auto strategy = branching_pipeline(training, on_cpus(0, 3), 4, layers);
    EXPECT_EQ(run_branching(*strategy).weights, one.weights);
    EXPECT_EQ(strategy->as<PipelineStages>()->bubble().stages, 2);
    EXPECT_EQ(strategy->as<PipelineStages>()->bubble().idle.size(), 3u);
  }
}

TEST(ModelParallelBranches, LieOnTheirDevices) {
  const auto devices_of = [](int devices, std::vector<int> layers = {}) {
    const auto strategy = branching_pipeline(branching_training(), on_cpus(0, devices), 0, std::move(layers));
    std::vector<std::string> names;
    for (const NamedTensor& each : strategy->model().named_parameters())
      if (each.name.ends_with("weight")) names.push_back(each.tensor.device().name());
    return names;  // stem, two branches, head
  };
  EXPECT_THAT(devices_of(2), ElementsAre("cpu:0", "cpu:0", "cpu:1", "cpu:0"));
  EXPECT_THAT(devices_of(2, {2, 2}), ElementsAre("cpu:0", "cpu:1", "cpu:1", "cpu:1"));
  EXPECT_THAT(devices_of(3, {2, 2}), ElementsAre("cpu:0", "cpu:1", "cpu:2", "cpu:1"));
  EXPECT_THAT(devices_of(3, {3, 1}), ElementsAre("cpu:0", "cpu:0", "cpu:1", "cpu:2"));
}

// Each branch waits, in forward and in backward, until the other one is there, too.
TEST(ModelParallelBranches, ComputeAtTheSameTime) {
  std::atomic<int> in_forward{0}, in_backward{0};
  const auto meet = [](std::atomic<int>& calls) {
    return [&calls](std::size_t) {
      const int until = calls++ / 2 * 2 + 2;  // both calls of this micro-batch
      const auto deadline = std::chrono::steady_clock::now() + 30s;
      while (calls < until) {
        if (std::chrono::steady_clock::now() > deadline) throw Error("the other branch waits for this one to end");
        std::this_thread::sleep_for(100us);
      }
    };
  };
  const auto strategy =
      branching_pipeline(branching_training(2, {meet(in_forward), meet(in_backward)}), on_cpus(0, 2), 3);
  run_branching(*strategy, 2);
  EXPECT_EQ(in_forward, 2 * 2 * 3);
  EXPECT_EQ(in_backward, 2 * 2 * 3);
}

TEST(ModelParallelBranches, CountTheirTraffic) {
  const auto strategy = branching_pipeline(branching_training(), on_cpus(0, 2), 2);
  const auto batch = batch_of(0);
  strategy->step(batch.first, batch.second);
  const std::uint64_t there = kBatch * 16 * sizeof(float), back = kBatch * 8 * sizeof(float);
  const std::uint64_t penalty = 2 * sizeof(float);  // one a micro-batch
  EXPECT_NEAR(static_cast<double>(strategy->traffic()[0].sent), static_cast<double>(there + back), penalty);
  EXPECT_NEAR(static_cast<double>(strategy->traffic()[0].received), static_cast<double>(there + back), penalty);
  EXPECT_EQ(strategy->traffic()[1].sent, strategy->traffic()[0].received);
}

TEST(ModelParallelBranches, LossesOfTheirModulesAreTheStagesLosses) {
  const auto strategy = branching_pipeline(branching_training(), on_cpus(0, 2), 2);
  const auto batch = batch_of(0);
  const float total = strategy->step(batch.first, batch.second);
  const std::vector<NamedLoss> losses = strategy->step_losses();
  ASSERT_EQ(losses.size(), 4u);
  EXPECT_EQ(losses[1].name, "penalty");
  EXPECT_EQ(losses[2].name, "penalty");
  EXPECT_NEAR(losses[0].value + losses[1].value + losses[2].value, total, 1e-5F);
}

// A rank has one device, on which the branches of its stage compute one after the other.
TEST(ModelParallelBranches, StagesAsRanksAreStagesAsDevices) {
  const Training training = branching_training();
  const BranchingRun devices = run_branching(*branching_pipeline(training, on_cpus(0, 2), 4, {2, 2}));
  testing::expect_all_well(testing::run_ranks(2, "threads", [&](std::shared_ptr<ProcessGroup> group) {
    StrategyOptions options;
    options.group = group;
    EXPECT_EQ(run_branching(*branching_pipeline(training, options, 4, {2, 2})).weights, devices.weights);
  }));
}

// Without the strategy: a wrapped module whose branches lie on two devices of each rank.
TEST(Branches, InDistributedDataParallelHaveTheBitsOfOneDevice) {
  const auto cpus = logical_devices(DeviceKind::kCpu);
  const auto weights = [&](bool is_split) {
    std::vector<float> first;
    testing::expect_all_well(testing::run_ranks(2, "threads", [&](std::shared_ptr<ProcessGroup> group) {
      const auto rank = static_cast<std::size_t>(group->rank());
      Device &near = *cpus[is_split ? 2 * rank : 0], &far = *cpus[is_split ? 2 * rank + 1 : 0];
      const auto model = branching_training().model();
      model->to(near);
      place_layers({model.get()}, {&near, &far});
      DistributedDataParallel ddp(*model, group);
      std::vector<NamedTensor> here, there;
      for (const NamedTensor& each : ddp.parameters())
        (each.name.starts_with("towers.1") ? there : here).push_back(each);
      optim::SGD one(here, {.lr = 0.1F}), other(there, {.lr = 0.1F});
      manual_seed(11);
      for (int step = 0; step < 5; ++step) {
        const auto batch = batch_of(step);
        const Range rows{.start = group->rank() * kBatch / 2, .stop = (group->rank() + 1) * kBatch / 2};
        one.zero_grad(), other.zero_grad();
        const nn::AddedLosses added;
        const Tensor outputs = ddp(slice(batch.first, 0, rows).to(near));
        added.total(nn::cross_entropy(outputs, slice(batch.second, 0, rows).to(near))).backward();
        one.step(), other.step();
      }
      if (rank == 0) first = weights_of(*model);
    }));
    return first;
  };
  EXPECT_EQ(weights(true), weights(false));
}

TEST(ModelParallelBranches, ShareALossScaler) {
  std::vector<std::vector<float>> weights;
  for (const int devices : {1, 2}) {
    optim::LossScaler scaler({.initial = 64, .growth_interval = 3});
    Training training = branching_training();
    training.optimizer = [&](std::vector<NamedTensor> parameters) -> std::unique_ptr<optim::Optimizer> {
      return std::make_unique<optim::SGD>(std::move(parameters),
                                          optim::SGDOptions{.lr = 0.05F, .momentum = 0.9F, .loss_scaler = &scaler});
    };
    training.loss = [&](const Tensor& outputs, const Tensor& targets) {
      return scaler.scale(nn::cross_entropy(outputs, targets));
    };
    const auto strategy = branching_pipeline(training, on_cpus(0, devices));
    manual_seed(11);
    for (int step = 0; step < 6; ++step) {
      auto batch = batch_of(step);
      if (step == 3) batch.first.span<float>()[0] = std::numeric_limits<float>::infinity();
      strategy->step(batch.first, batch.second);
    }
    EXPECT_EQ(scaler.skipped_steps(), 1) << "one decision for all devices";
    weights.push_back(weights_of(strategy->model()));
  }
  EXPECT_EQ(weights[1], weights[0]);
}

TEST(ModelParallelBranches, ResumeFromACheckpointBitForBit) {
  const std::string folder = fmt::format("{}branches-checkpoint-{}", ::testing::TempDir(), ::getpid());
  Training training = branching_training();
  training.optimizer = [](std::vector<NamedTensor> parameters) -> std::unique_ptr<optim::Optimizer> {
    return std::make_unique<optim::Adam>(std::move(parameters), optim::AdamOptions{.lr = 0.01F});
  };
  const auto steps = [](Strategy& strategy, int first, int last) {
    for (int step = first; step < last; ++step) {
      const auto batch = batch_of(step);
      manual_seed(static_cast<std::uint64_t>(step));
      strategy.step(batch.first, batch.second);
    }
  };
  const auto whole = branching_pipeline(training, on_cpus(0, 2)), first = branching_pipeline(training, on_cpus(0, 2)),
             second = branching_pipeline(training, on_cpus(0, 2));
  steps(*whole, 0, 8);
  steps(*first, 0, 4);
  save_checkpoint(folder, {.model = first->model(), .optimizer = first->optimizer(), .step = 4});
  EXPECT_EQ(resume_checkpoint(folder, {.model = second->model(), .optimizer = second->optimizer()}).step, 4);
  steps(*second, 4, 8);
  EXPECT_EQ(weights_of(second->model()), weights_of(whole->model()));
  std::filesystem::remove_all(folder);
}

TEST(ModelParallelBranches, AnErrorInABranchEndsTheStepAndTheNextOneWorks) {
  for (const bool in_forward : {true, false}) {
    std::atomic<bool> fails{false};
    const auto call = [&](std::size_t branch) {
      if (fails && branch == 1) throw Error("branch 1 is on fire");
    };
    const auto strategy = branching_pipeline(branching_training(2, in_forward ? Calls{call, {}} : Calls{{}, call}),
                                             on_cpus(0, 3), 4, {2, 2});
    run_branching(*strategy, 1);
    fails = true;
    const auto batch = batch_of(0);
    EXPECT_EQ(message_of([&] { strategy->step(batch.first, batch.second); }), "branch 1 is on fire");
    fails = false;
    run_branching(*strategy, 1);
  }
}

TEST(ModelParallelBranches, WhatIsRefused) {
  const auto refused = [](int devices, std::vector<int> layers) {
    return message_of([&] { branching_pipeline(branching_training(), on_cpus(0, devices), 0, std::move(layers)); });
  };
  EXPECT_THAT(refused(4, {2, 2}), HasSubstr(".stage_layers has 2 stages, which use 2 to 3 devices with their branches, "
                                            "but .devices has 4"));
  EXPECT_THAT(refused(1, {2, 2}), HasSubstr("but .devices has 1"));
  EXPECT_THAT(refused(2, {2, 1}), HasSubstr(".stage_layers has 2 numbers with sum 3"));
}

}  // namespace
}  // namespace lockstep::train

// One LossScaler in each strategy: one decision and one change of the scale a step, whoever computes the gradients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "lockstep/train/deploy.h"
#include "tests/ddp/ranks.h"
#include "tests/support/message_of.h"
#include "tests/support/strategies_of_one_process.h"
#include "tests/train/strategy_training.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

using Group = std::shared_ptr<ProcessGroup>;
using Scaler = std::shared_ptr<optim::LossScaler>;

constexpr int kScaledSteps = 12, kNever = -1, kBad = 5;
constexpr float kLast = 1024;         // 64, doubled by each three of twelve good steps
constexpr float kLastAfterBad = 256;  // 64, 128, halved by step 5, doubled twice

Scaler new_scaler(std::int64_t max_skips = 100) {
  return std::make_shared<optim::LossScaler>(
      optim::LossScalerOptions{.initial = 64, .growth_interval = 3, .max_skips_in_a_row = max_skips});
}

Training scaled_by(const Scaler& scaler) {
  Training training = training_of_net();
  training.model = [] {
    manual_seed(7);
    auto net = std::make_unique<nn::Sequential>();
    net->append<nn::Flatten>();
    net->append<nn::Linear>(72, 8, nn::LinearLayerOptions{.activation = Activation::kReLU});
    net->append<nn::Linear>(8, 3);
    return net;
  };
  training.optimizer = [scaler](std::vector<NamedTensor> parameters) -> std::unique_ptr<optim::Optimizer> {
    return std::make_unique<optim::SGD>(
        std::move(parameters),
        optim::SGDOptions{.lr = 0.05F, .momentum = 0.9F, .weight_decay = 1e-3F, .loss_scaler = scaler.get()});
  };
  training.loss = [scaler](const Tensor& outputs, const Tensor& targets) {
    const Tensor loss = nn::cross_entropy(outputs, targets);
    return scaler ? scaler->scale(loss) : loss;
  };
  return training;
}

// Its first sample is the first device's, and the first rank's.
std::pair<Tensor, Tensor> samples_of(int step, bool is_bad) {
  auto batch = batch_of(step);
  if (is_bad) batch.first.span<float>()[0] = std::numeric_limits<float>::infinity();
  return batch;
}

struct Scaled {
  std::vector<float> weights;
  float scale = 0;
  std::int64_t skipped = 0;
};

// `take` makes a step. Without a scaler a bad step is left out: what the scaler has to come to.
Scaled run_scaled(Strategy& strategy, const Scaler& scaler, int bad,
                  const std::function<void(const Tensor&, const Tensor&)>& take) {
  for (int step = 0; step < kScaledSteps; ++step) {
    if (step == bad && !scaler) continue;
    const auto batch = samples_of(step, step == bad);
    take(batch.first, batch.second);
    if (strategy.as<ParameterHolder>() != nullptr) continue;
    for (nn::Module* replica : strategy.replicas())
      EXPECT_EQ(weights_of(*replica), weights_of(strategy.model())) << "step " << step;
  }
  return {weights_of(strategy.model()), scaler ? scaler->value() : 0, scaler ? scaler->skipped_steps() : 0};
}

Scaled run_alone(const std::string& name, const StrategyOptions& options, const Scaler& scaler, int bad) {
  const auto strategy = make_strategy(name, scaled_by(scaler), options);
  return run_scaled(*strategy, scaler, bad, [&](const Tensor& x, const Tensor& y) { strategy->step(x, y); });
}

void expect_as_without(const Scaled& scaled, const Scaled& plain, int bad, const std::string& what) {
  EXPECT_EQ(scaled.weights, plain.weights) << what << ": scales are powers of two: the same bits";
  EXPECT_EQ(scaled.scale, bad == kNever ? kLast : kLastAfterBad) << what;
  EXPECT_EQ(scaled.skipped, bad == kNever ? 0 : 1) << what;
}

TEST(StrategyLossScaler, StrategiesOfOneProcessApplyTheRuleOnceAStep) {
  for (const std::string& name : testing::strategies_of_one_process(testing::Stages::kToo))
    for (const int devices : {1, 2, 3})
      for (const int bad : {kNever, kBad})
        for (const int first : {0, 1}) {
          StrategyOptions options = on_cpus(first, devices);
          if (name == "model_parallel") options.micro_batches = 4;
          expect_as_without(run_alone(name, options, new_scaler(), bad), run_alone(name, options, nullptr, bad), bad,
                            fmt::format("{} on {} devices from cpu:{} on, bad step {}", name, devices, first, bad));
        }
}

// Returns the results of each rank.
std::vector<Scaled> run_by_ranks(const std::string& name, int ranks, bool is_scaled, int bad) {
  std::vector<Scaled> all(static_cast<std::size_t>(ranks));
  testing::expect_all_well(testing::run_ranks(ranks, "threads", [&](Group group) {
    const Scaler scaler = is_scaled ? new_scaler() : nullptr;
    const bool is_pipeline = name == "model_parallel";
    const auto strategy =
        make_strategy(name, scaled_by(scaler),
                      is_pipeline ? StrategyOptions{.group = group, .micro_batches = 4, .stage_layers = {2, 1}}
                                  : StrategyOptions{.group = group});
    const std::int64_t each = is_pipeline ? kBatch : kBatch / ranks, begin = is_pipeline ? 0 : group->rank() * each;
    const Range rows{.start = begin, .stop = begin + each};
    all[static_cast<std::size_t>(group->rank())] =
        run_scaled(*strategy, scaler, bad,
                   [&](const Tensor& x, const Tensor& y) { strategy->step(slice(x, 0, rows), slice(y, 0, rows)); });
  }));
  return all;
}

TEST(StrategyLossScaler, RanksApplyItOnceAStep) {
  for (const char* name : {"ddp", "zero", "model_parallel"})
    for (const int bad : {kNever, kBad}) {
      const std::vector<Scaled> scaled = run_by_ranks(name, 2, true, bad), plain = run_by_ranks(name, 2, false, bad);
      for (std::size_t rank = 0; rank < scaled.size(); ++rank)
        expect_as_without(scaled[rank], plain[rank], bad, fmt::format("{}, bad step {}, rank {}", name, bad, rank));
    }
}

// Between averages each rank goes its own way, and its scale with it; the last of the twelve steps averages.
TEST(StrategyLossScaler, RanksOfLocalSgdGoOnFromOneScale) {
  const std::vector<Scaled> good = run_by_ranks("local_sgd", 2, true, kNever),
                            plain = run_by_ranks("local_sgd", 2, false, kNever);
  for (std::size_t rank = 0; rank < good.size(); ++rank)
    expect_as_without(good[rank], plain[rank], kNever, fmt::format("rank {}", rank));
  const std::vector<Scaled> bad = run_by_ranks("local_sgd", 2, true, kBad);
  EXPECT_EQ(bad[0].weights, bad[1].weights);
  for (const Scaled& rank : bad) {
    for (const float weight : rank.weights) ASSERT_TRUE(std::isfinite(weight));
    EXPECT_EQ(rank.skipped, 1) << "rank 0's";
    EXPECT_EQ(rank.scale, bad[0].scale);
    EXPECT_LT(rank.scale, kLast);
  }
}

TEST(StrategyLossScaler, ClonesApplyItOnceAStep) {
  const auto run = [](const Scaler& scaler) {
    const DeployedModel deployed = deploy(
        {.num_clones = 3, .devices = on_cpus(1, 3).devices}, scaled_by(scaler),
        {.next_batch = [step = 0]() mutable -> std::optional<std::pair<Tensor, Tensor>> { return batch_of(step++); }});
    for (int step = 0; step < kScaledSteps; ++step) deployed.train_op.run();
    return Scaled{weights_of(deployed.clones->variables()), scaler ? scaler->value() : 0,
                  scaler ? scaler->skipped_steps() : 0};
  };
  expect_as_without(run(new_scaler()), run(nullptr), kNever, "deploy");
}

// The parts of one model on two devices, by hand: an optimizer each.
TEST(StrategyLossScaler, OptimizersOfTwoDevicesMayShareOne) {
  const auto devices = on_cpus(1, 2).devices;
  const auto run = [&](const Scaler& scaler) {
    manual_seed(3);
    nn::Linear first(4, 4), second(4, 3);
    first.to(*devices[0]), second.to(*devices[1]);
    optim::SGD a(first.named_parameters(), {.lr = 0.1F, .loss_scaler = scaler.get()});
    optim::SGD b(second.named_parameters(), {.lr = 0.1F, .loss_scaler = scaler.get()});
    for (int step = 0; step < kScaledSteps; ++step) {
      a.zero_grad(), b.zero_grad();
      const Tensor x = Tensor::full({2, 4}, 0.25F * static_cast<float>(step + 1), *devices[0]);
      const Tensor y = second(to_device(first(x), *devices[1])), loss = mean(y * y);
      (scaler ? scaler->scale(loss) : loss).backward();
      a.step(), b.step();
    }
    std::vector<float> weights = weights_of(first), more = weights_of(second);
    weights.insert(weights.end(), more.begin(), more.end());
    return Scaled{weights, scaler ? scaler->value() : 0, scaler ? scaler->skipped_steps() : 0};
  };
  expect_as_without(run(new_scaler()), run(nullptr), kNever, "two devices");
}

TEST(StrategyLossScaler, TooManySkipsInARowAreAnErrorOnAllRanks) {
  for (const char* name : {"ddp", "zero", "model_parallel", "local_sgd"}) {
    const auto failures = testing::run_ranks(2, "threads", [&](Group group) {
      const Scaler scaler = new_scaler(4);
      StrategyOptions options{.group = group};
      if (name == std::string("model_parallel")) options.micro_batches = 2, options.stage_layers = {2, 1};
      const auto strategy = make_strategy(name, scaled_by(scaler), options);
      for (int step = 0; step < 8; ++step) {
        const auto batch = samples_of(step, group->rank() == 0);  // of model_parallel rank 0 has the inputs
        strategy->step(batch.first, batch.second);
      }
    });
    EXPECT_THAT(failures, Each(AllOf(HasSubstr("in each of the last 4 steps a gradient was infinite or NaN"),
                                     HasSubstr("the scale has fallen to 4"), HasSubstr("lower the learning rate"))))
        << name;
  }
  for (const std::string& name : testing::strategies_of_one_process(testing::Stages::kToo)) {
    const auto strategy = make_strategy(name, scaled_by(new_scaler(4)), on_cpus(0, 2));
    const auto batch = samples_of(0, true);
    for (int step = 0; step < 3; ++step) strategy->step(batch.first, batch.second);
    EXPECT_THAT(message_of([&] { strategy->step(batch.first, batch.second); }),
                HasSubstr("in each of the last 4 steps"))
        << name;
  }
}

TEST(StrategyLossScaler, WhatCannotWorkIsRefusedOnAllRanks) {
  for (const int staleness : {0, 2})
    EXPECT_THAT(testing::run_ranks(3, "shm",
                                   [&](Group group) {
                                     make_strategy(
                                         "parameter_server", scaled_by(new_scaler()),
                                         {.group = group, .parameter_server = {.servers = 1, .staleness = staleness}});
                                   }),
                Each(HasSubstr("parameter_server: the optimizer has a LossScaler")));
  EXPECT_THAT(testing::run_ranks(
                  2, "threads",
                  [&](Group group) {
                    make_strategy("model_parallel", scaled_by(new_scaler()), {.group = group, .stage_layers = {1, 2}});
                  }),
              Each(HasSubstr("the optimizer of rank 1 has a LossScaler, and the stage of rank 0 trains nothing")));
  for (const char* name : {"ddp", "zero", "local_sgd", "model_parallel"})
    EXPECT_THAT(testing::run_ranks(2, "threads",
                                   [&](Group group) {
                                     StrategyOptions options{.group = group};
                                     if (name == std::string("model_parallel")) options.stage_layers = {2, 1};
                                     make_strategy(name, scaled_by(new_scaler(group->rank() == 0 ? 100 : 7)), options);
                                   }),
                Each(AllOf(HasSubstr("max_skips_in_a_row 100"), HasSubstr("max_skips_in_a_row 7"))))
        << name;
  for (const char* name : {"mirrored", "model_parallel"}) {
    Training training = scaled_by(nullptr);
    std::vector<Scaler> made;
    training.optimizer = [&made](std::vector<NamedTensor> parameters) -> std::unique_ptr<optim::Optimizer> {
      made.push_back(new_scaler());
      return std::make_unique<optim::SGD>(std::move(parameters), optim::SGDOptions{.loss_scaler = made.back().get()});
    };
    StrategyOptions options = on_cpus(0, 2);
    if (name == std::string("model_parallel")) options.stage_layers = {2, 1};
    EXPECT_THAT(message_of([&] { make_strategy(name, training, options); }),
                HasSubstr(fmt::format(
                    "{}: the optimizers that Training::optimizer() returned do not share one LossScaler", name)));
  }
}

}  // namespace
}  // namespace lockstep::train

// Strategies against each other: from the same weights and samples all synchronous ones come to ddp's weights.
#include "lockstep/train/strategy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/ddp/ranks.h"
#include "tests/support/in_mib.h"
#include "tests/support/message_of.h"
#include "tests/train/ddp_outcome.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Before any test makes a tensor.
class FourCpus : public ::testing::Environment {
  void SetUp() override { Device::configure({.cpu = 4}); }
};
const auto* const kFourCpus = ::testing::AddGlobalTestEnvironment(new FourCpus);

Outcome train_alone(const std::string& name, const StrategyOptions& options) {
  const auto strategy = make_strategy(name, training_of_net(), options);
  manual_seed(11);
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    const auto batch = batch_of(step);
    const Tensor &inputs = batch.first, &targets = batch.second;
    outcome.last_loss = strategy->step(inputs, targets);
    if (step == 0) outcome.first_loss = outcome.last_loss;
  }
  outcome.weights = weights_of(strategy->model());
  return outcome;
}

class Synchronous : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(Synchronous, ComesToTheWeightsOfDdp) {
  const auto [name, devices] = GetParam();
  const Outcome ddp = train_by_ddp(devices), other = train_alone(name, on_cpus(0, devices));
  EXPECT_GT(largest_difference(ddp.weights, weights_of(*training_of_net().model())), 0.01F)
      << "equal weights would say little";
  if (name == "data_parallel")
    EXPECT_LT(largest_difference(ddp.weights, other.weights), 2e-4F);
  else
    EXPECT_EQ(ddp.weights, other.weights) << "the same sums in the same order";
  EXPECT_NEAR(ddp.first_loss, other.first_loss, 1e-5F);
  EXPECT_NEAR(ddp.last_loss, other.last_loss, 1e-3F);
}

TEST(Zero, ComesToTheWeightsOfDdp) {
  for (const int ranks : {1, 2, 4})
    EXPECT_EQ(train_by_ddp(ranks, "zero").weights, train_by_ddp(ranks).weights) << ranks << " ranks";
}

// Averages after each step are ddp's steps but for rounding: a momentum is linear in the gradients. Less often, ranks
// go apart between them.
TEST(LocalSgd, AveragesWeightsEverySoManySteps) {
  std::uint64_t bytes = 0;
  for (const NamedTensor& each : training_of_net().model()->named_parameters()) bytes += each.tensor.bytes();
  for (const int ranks : {2, 4})
    testing::expect_all_well(testing::run_ranks(ranks, "threads", [&](std::shared_ptr<ProcessGroup> group) {
      const DistributedDataParallelOptions ddp{.forward_sync_buffers = false};
      const auto often =
          make_strategy("local_sgd", training_of_net(), {.group = group, .ddp = ddp, .average_period = 1});
      const auto plain = make_strategy("ddp", training_of_net(), {.group = group, .ddp = ddp});
      const auto seldom =
          make_strategy("local_sgd", training_of_net(), {.group = group, .ddp = ddp, .average_period = 3});
      for (int step = 1; step <= 6; ++step) {
        for (Strategy* strategy : {often.get(), plain.get(), seldom.get()})
          step_on_own_samples(*strategy, *group, step);
        EXPECT_LT(largest_difference(weights_of(often->model()), weights_of(plain->model())), 1e-5F);
        const auto own = weights_of(seldom->model());
        std::vector<float> mean = own;
        group->all_reduce(std::span(mean), ReduceOp::kAvg);
        EXPECT_EQ(largest_difference(own, mean) < 1e-6F, step % 3 == 0) << "step " << step;
      }
      const auto ranks_here = static_cast<std::uint64_t>(group->world_size());
      EXPECT_NEAR(static_cast<double>(seldom->traffic()[0].sent),
                  2.0 * 2 * static_cast<double>((ranks_here - 1) * bytes / ranks_here), 2048);
    }));
}

TEST(LocalSgd, RefusesWhatItHasNoUseFor) {
  testing::expect_all_well(testing::run_ranks(2, "threads", [&](std::shared_ptr<ProcessGroup> group) {
    const auto refusal = [&](const std::string& name, StrategyOptions options) {
      options.group = group;
      return message_of([&] { make_strategy(name, training_of_net(), options); });
    };
    EXPECT_THAT(refusal("ddp", {.average_period = 2}), HasSubstr("is an option of local_sgd"));
    EXPECT_THAT(refusal("local_sgd", {.average_period = -1}), HasSubstr(".average_period is -1"));
    EXPECT_THAT(refusal("local_sgd", {.ddp = DistributedDataParallelOptions{.comm_hook = hooks::bf16()}}),
                HasSubstr("this strategy sends no gradients"));
  }));
}

TEST_P(Synchronous, DevicesOtherThanTheCpuOfTheSamplesGiveTheSame) {
  const auto [name, devices] = GetParam();
  if (devices == 4) GTEST_SKIP() << "there are four devices";
  EXPECT_EQ(train_alone(name, on_cpus(0, devices)).weights, train_alone(name, on_cpus(1, devices)).weights);
}

INSTANTIATE_TEST_SUITE_P(Strategies, Synchronous,
                         ::testing::Combine(::testing::Values("mirrored", "data_parallel", "towers"),
                                            ::testing::Values(1, 2, 3, 4)),
                         [](const auto& tested) {
                           return std::get<0>(tested.param) + "_" + std::to_string(std::get<1>(tested.param));
                         });

TEST(StrategyTraffic, IsWhatTheOpeningCommentsSay) {
  std::uint64_t weights = 0, buffers = 0;
  {
    const auto net = training_of_net().model();
    for (const NamedTensor& each : net->named_parameters()) weights += each.tensor.bytes();
    for (const NamedTensor& each : net->named_buffers()) buffers += each.tensor.bytes();
  }
  const auto batch = batch_of(0);
  const Tensor &inputs = batch.first, &targets = batch.second;
  const auto after_a_step = [&](const std::string& name, const StrategyOptions& options) {
    const auto strategy = make_strategy(name, training_of_net(), options);
    strategy->step(inputs, targets);
    return strategy->traffic();
  };
  const std::uint64_t samples = inputs.bytes() + targets.bytes();
  const auto mirrored = after_a_step("mirrored", on_cpus(0, 2));
  EXPECT_GE(mirrored[0].sent, weights + buffers + samples / 2);
  EXPECT_LE(mirrored[0].sent, weights + buffers + samples / 2 + 1024) << "and what fills the last cache lines";
  EXPECT_EQ(mirrored[0].sent, mirrored[1].received);

  const auto towers = after_a_step("towers", on_cpus(1, 2));  // the variables are on cpu:0
  EXPECT_EQ(towers.size(), 3u);
  EXPECT_EQ(towers[2].sent, 2 * (weights + buffers) + samples);
  EXPECT_EQ(towers[2].received, 2 * weights + buffers);
  EXPECT_EQ(towers[0].sent, weights + buffers);

  const auto gathered = after_a_step("data_parallel", on_cpus(0, 2));
  const std::uint64_t outputs = kBatch / 2 * 3 * sizeof(float);
  EXPECT_EQ(gathered[0].sent, weights + buffers + inputs.bytes() / 2 + outputs);
  EXPECT_EQ(gathered[0].received, weights + outputs);
}

TEST(Strategies, TowersNameTheirLosses) {
  const auto strategy = make_strategy("towers", training_of_net(), on_cpus(0, 2));
  const auto batch = batch_of(0);
  const Tensor &inputs = batch.first, &targets = batch.second;
  const float mean = strategy->step(inputs, targets);
  const std::vector<NamedLoss> losses = strategy->as<PartLosses>()->losses();
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_EQ(losses[1].name, "tower_1/loss");
  EXPECT_NEAR((losses[0].value + losses[1].value) / 2, mean, 1e-6);
}

// The first layer is frozen, and drawn anew by each call: no replica may compute with a draw of its own.
Training training_with_frozen_layer(float lr) {
  Training training = training_of_net();
  training.model = [] {
    auto net = std::make_unique<Net>();
    net->conv.freeze();
    return net;
  };
  training.optimizer = [lr](std::vector<NamedTensor> parameters) -> std::unique_ptr<optim::Optimizer> {
    return std::make_unique<optim::SGD>(std::move(parameters), optim::SGDOptions{.lr = lr});
  };
  return training;
}

// The loss of a net, in the mode in which it is, over parts of step 0's batch.
float mean_loss_of(nn::Module& net, std::int64_t parts) {
  const auto batch = batch_of(0);
  const Tensor &inputs = batch.first, &targets = batch.second;
  float sum = 0;
  for (std::int64_t part = 0; part < parts; ++part) {
    const Range rows{.start = part * kBatch / parts, .stop = (part + 1) * kBatch / parts};
    sum += nn::cross_entropy(net(slice(inputs, 0, rows)), slice(targets, 0, rows)).item();
  }
  return sum / static_cast<float>(parts);
}

TEST(Strategies, ReplicasHaveTheFrozenParametersOfTheModel) {
  for (const char* name : {"mirrored", "data_parallel", "towers"}) {
    manual_seed(5);
    const auto strategy = make_strategy(name, training_with_frozen_layer(0), on_cpus(0, 2));
    strategy->model().eval();  // no dropout, and no statistics of the batch
    const auto batch = batch_of(0);
    EXPECT_NEAR(strategy->step(batch.first, batch.second), mean_loss_of(strategy->model(), 2), 1e-5F) << name;
  }
}

// As when a checkpoint is loaded after the strategy was made.
TEST(Strategies, ReplicasFollowFrozenParametersThatChange) {
  for (const char* name : {"mirrored", "data_parallel", "towers"}) {
    const auto strategy = make_strategy(name, training_with_frozen_layer(0), on_cpus(0, 2));
    strategy->model().eval();
    const auto batch = batch_of(0);
    const float before = strategy->step(batch.first, batch.second);
    strategy->model().named_parameters()[0].tensor.fill(0.125F);
    const float after = strategy->step(batch.first, batch.second);
    EXPECT_NE(before, after) << name;
    EXPECT_NEAR(after, mean_loss_of(strategy->model(), 2), 1e-5F) << name;
  }
}

// A mode is a module's own: a model that trains may hold a part in eval mode.
TEST(Strategies, ReplicasHaveTheModesOfTheModel) {
  for (const char* name : {"mirrored", "data_parallel", "towers"}) {
    const auto strategy = make_strategy(name, training_with_frozen_layer(0), on_cpus(0, 2));
    const auto batch = batch_of(0);
    strategy->model().eval();
    const std::vector<NamedTensor> statistics = strategy->model().named_buffers();
    const Tensor before = statistics[0].tensor.clone();
    const float first = strategy->step(batch.first, batch.second);
    EXPECT_EQ(first, strategy->step(batch.first, batch.second)) << name << ": dropout draws anew in each step";
    EXPECT_NEAR(first, mean_loss_of(strategy->model(), 2), 1e-5F) << name;

    strategy->model().train();
    for (const auto& [child, module] : strategy->model().children())
      if (child == "norm") module->eval();
    EXPECT_NE(first, strategy->step(batch.first, batch.second)) << name << ": dropout is on again";
    EXPECT_TRUE(std::equal(before.span<float>().begin(), before.span<float>().end(),
                           statistics[0].tensor.span<float>().begin()))
        << name << ": the statistics of a layer in eval mode have moved";
  }
}

TEST(Strategies, DdpTakesTheOptionsOfDistributedDataParallel) {
  testing::expect_all_well(testing::run_ranks(2, "threads", [](std::shared_ptr<ProcessGroup> group) {
    int buckets = 0;
    StrategyOptions options;
    options.group = group;
    options.ddp = {.bucket_cap_mb = {testing::in_mib(64)},
                   .forward_sync_buffers = false,
                   .comm_hook = [&](ProcessGroup& all, const GradBucket& bucket) {
                     ++buckets;
                     return all.all_reduce_async(bucket.buffer, bucket.count, bucket.dtype, ReduceOp::kAvg);
                   }};
    const auto strategy = make_strategy("ddp", training_of_net(), options);
    const auto batch = batch_of(group->rank());
    strategy->step(batch.first, batch.second);
    EXPECT_EQ(buckets, 8) << "one a parameter";
    std::uint64_t gradients = 0;
    for (const NamedTensor& each : strategy->model().named_parameters()) gradients += each.tensor.bytes();
    EXPECT_EQ(strategy->traffic()[0].sent, strategy->traffic()[0].received) << "no buffers";
    EXPECT_GE(strategy->traffic()[0].sent, gradients);
  }));
}

TEST(Strategies, WhatIsRefused) {
  EXPECT_THAT(message_of([] { make_strategy("towers", training_of_net(), {.ddp = DistributedDataParallelOptions()}); }),
              HasSubstr("towers: .ddp has options of ddp, zero and local_sgd"));
  EXPECT_THAT(
      message_of([] { make_strategy("horovod", training_of_net()); }),
      HasSubstr("unknown strategy 'horovod': expected one of ddp, mirrored, data_parallel, towers, model_parallel, "
                "parameter_server, zero, local_sgd"));
  EXPECT_EQ(make_strategy("ddp", training_of_net())->name(), std::string("ddp"))
      << "a job of one, which it has joined by itself";
  EXPECT_THAT(message_of([] { make_strategy("ddp", training_of_net(), on_cpus(0, 1)); }),
              HasSubstr(".devices is for strategies with one process"));
  EXPECT_THAT(message_of([] {
                make_strategy("mirrored", training_of_net(), {.devices = {&cpu_device(), &cpu_device()}});
              }),
              HasSubstr("mirrored: cpu:0 comes twice in the list of devices"));
  EXPECT_THAT(message_of([] { make_strategy("mirrored", training_of_net(), {.parameter_device = &cpu_device()}); }),
              HasSubstr("an option of towers"));
  EXPECT_THAT(message_of([] { make_strategy("towers", training_of_net(), {.parameter_server = {.staleness = 1}}); }),
              HasSubstr("towers: .parameter_server has options of parameter_server"));
  EXPECT_EQ(make_strategy("towers", training_of_net(), on_cpus(0, 1))->as<ParameterHolder>(), nullptr);
  EXPECT_THAT(message_of([] { make_strategy("towers", {}); }),
              HasSubstr("Training needs all of .model, .optimizer and .loss"));
  for (const char* name : {"mirrored", "data_parallel", "towers"}) {
    const auto strategy = make_strategy(name, training_of_net(), on_cpus(0, 4));
    const auto batch = batch_of(0);
    const Tensor &inputs = batch.first, &targets = batch.second;
    EXPECT_THAT(message_of([&] { strategy->step(slice(inputs, 0, {.stop = 0}), slice(targets, 0, {.stop = 0})); }),
                AllOf(HasSubstr(name), HasSubstr("a step got no samples")));
    EXPECT_THAT(message_of([&] { strategy->weighted_step(inputs, targets, 0.5F); }),
                AllOf(HasSubstr(name), HasSubstr("weighted_step() got weight 0.5: this strategy has no ranks")));
    EXPECT_THAT(message_of([&] { strategy->step(inputs, slice(targets, 0, {.stop = 10})); }),
                HasSubstr("12 inputs but 10 targets"));
  }
}

// No rank waits for one whose function has failed, and the group goes on.
TEST(Strategies, AFunctionThatThrowsOnOneRankEndsTheCallOnAll) {
  for (const char* name : {"ddp", "zero"})
    for (const bool by_model : {true, false}) {
      SCOPED_TRACE(fmt::format("{}, {}", name, by_model ? "model" : "optimizer"));
      std::vector<std::string> messages(3);
      testing::expect_all_well(testing::run_ranks(3, "threads", [&](std::shared_ptr<ProcessGroup> group) {
        const Training good = training_of_net();
        Training training = good;
        if (group->rank() == 1 && by_model)
          training.model = []() -> std::unique_ptr<nn::Module> { throw FileError("no vocabulary"); };
        if (group->rank() == 1 && !by_model)
          training.optimizer = [](auto) -> std::unique_ptr<optim::Optimizer> { throw FileError("no rate"); };
        messages[static_cast<std::size_t>(group->rank())] =
            message_of([&] { make_strategy(name, training, {.group = group}); });
        const auto batch = batch_of(group->rank());
        make_strategy(name, good, {.group = group})->step(batch.first, batch.second);
      }));
      const std::string reason = by_model ? "no vocabulary" : "no rate";
      EXPECT_EQ(messages, (std::vector<std::string>{"rank 1: " + reason, reason, "rank 1: " + reason}));
    }
}

// Batch normalisation, 16-bit products and a float32 shift: operands of unlike types on all devices' threads.
struct MixedNet : Net {
  Tensor shift = Tensor::full({8}, 0.25F);
  MixedNet() { add_parameter("shift", shift); }
  Tensor forward(const Tensor& x) override { return out(softmax(hidden(flatten(norm(conv(x)))) + shift)); }
};

TEST(Strategies, ComputeUnlikeTypesUnderAnAutoCast) {
  Training training = training_of_net();
  training.model = [] {
    manual_seed(7);
    return std::make_unique<MixedNet>();
  };
  for (const char* name : {"mirrored", "towers"}) {
    SCOPED_TRACE(name);
    std::vector<std::vector<float>> losses;
    for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
      const auto strategy = make_strategy(name, training, on_cpus(0, 2));
      const AutoCast autocast(type);
      losses.emplace_back();
      for (int step = 0; step < 5; ++step) {
        const auto batch = batch_of(step);
        losses.back().push_back(strategy->step(batch.first, batch.second));
      }
    }
    EXPECT_NE(losses[1], losses[0]) << "bfloat16 was not used";
    for (std::size_t step = 0; step < losses[0].size(); ++step)
      EXPECT_NEAR(losses[1][step], losses[0][step], 0.02F) << step;
  }
}

TEST(Strategies, DataParallelIsRefusedUnderAnAutoCast) {
  const auto strategy = make_strategy("data_parallel", training_of_net(), on_cpus(0, 2));
  const auto batch = batch_of(0);
  const AutoCast half(DType::kBFloat16);
  EXPECT_THAT(
      message_of([&] { strategy->step(batch.first, batch.second); }),
      HasSubstr("data_parallel: step() under an AutoCast to bfloat16: this strategy sends activations as float32"));
}

// As a checkpoint does, into what the caller sees: the first replica's.
TEST(Strategies, ReplicasFollowWeightsStateAndRateThatAreLoaded) {
  for (const char* name : {"mirrored", "data_parallel", "towers"}) {
    const auto strategy = make_strategy(name, training_of_net(), on_cpus(0, 3));
    const auto train_on = [&](int first, int steps) {
      manual_seed(13);
      for (int step = first; step < first + steps; ++step) {
        const auto batch = batch_of(step);
        strategy->step(batch.first, batch.second);
      }
      return weights_of(strategy->model());
    };
    train_on(0, 3);
    std::vector<NamedTensor> saved, live = strategy->model().state_dict(), state = strategy->optimizer().state();
    live.insert(live.end(), state.begin(), state.end());
    for (const NamedTensor& each : live) saved.push_back({each.name, each.tensor.clone()});
    strategy->set_lr(0.02F);
    const std::vector<float> expected = train_on(3, 3);
    strategy->set_lr(0.3F);
    train_on(6, 2);
    for (std::size_t i = 0; i < live.size(); ++i) live[i].tensor.copy_from(saved[i].tensor);
    strategy->optimizer().set_lr(0.02F);
    EXPECT_EQ(train_on(3, 3), expected) << name;
  }
}

// An exception on one device's thread reaches the caller, and no thread waits for the one that failed.
TEST(Strategies, AFailureOnOneDeviceEndsTheStep) {
  for (const char* name : {"mirrored", "data_parallel", "towers"}) {
    const auto strategy = make_strategy(name, training_of_net(), on_cpus(0, 4));
    const auto batch = batch_of(0);
    const Tensor &inputs = batch.first, &targets = batch.second;
    Tensor wrong = targets.clone();
    wrong.span<std::int64_t>()[kBatch - 1] = 99;  // the last device's
    EXPECT_THAT(message_of([&] { strategy->step(inputs, wrong); }), HasSubstr("99")) << name;
  }
}

}  // namespace
}  // namespace lockstep::train

// Replicas, towers and stages behave like the one model that they stand for: rates, parameters without a gradient,
// buffers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "lockstep/train/deploy.h"
#include "tests/ddp/ranks.h"
#include "tests/support/message_of.h"
#include "tests/support/strategies_of_one_process.h"
#include "tests/train/ddp_outcome.h"
#include "tests/train/strategy_training.h"

namespace lockstep::train {
namespace {

using ::testing::HasSubstr;
using Group = std::shared_ptr<ProcessGroup>;

std::vector<float> values_in(const Tensor& tensor) {
  const Tensor host = tensor.to(cpu_device());
  return {host.span<float>().begin(), host.span<float>().end()};
}

// Weights in group 0, biases in group 1.
Training training_in_groups() {
  Training training = training_of_net();
  training.model = [] {
    manual_seed(7);
    auto net = std::make_unique<nn::Sequential>();
    net->append<nn::Flatten>();
    net->append<nn::Linear>(72, 8);
    net->append<nn::Linear>(8, 3);
    return net;
  };
  training.optimizer = [](std::vector<NamedTensor> parameters) -> std::unique_ptr<optim::Optimizer> {
    std::vector<NamedTensor> weights, biases;
    for (NamedTensor& each : parameters) (each.tensor.shape().dims() == 1 ? biases : weights).push_back(each);
    auto optimizer = std::make_unique<optim::SGD>(std::move(weights), optim::SGDOptions{.lr = 0.1F});
    optimizer->add_group({.parameters = std::move(biases), .lr_factor = 2});
    return optimizer;
  };
  return training;
}

StrategyOptions two_cpus(const std::string& name) {
  StrategyOptions options = on_cpus(0, 2);
  if (name == "model_parallel") options.stage_layers = {2, 1};
  return options;
}

TEST(StrategyRates, AFactorReachesAllReplicasAndStages) {
  for (const std::string& name : testing::strategies_of_one_process(testing::Stages::kToo)) {
    const auto strategy = make_strategy(name, training_in_groups(), two_cpus(name));
    std::map<std::string, std::vector<float>> before;
    for (int step = 0; step < 5; ++step) {
      if (step == 2) {
        strategy->optimizer().set_lr_factor(1, 0);
        for (const NamedTensor& each : strategy->model().named_parameters()) before[each.name] = values_in(each.tensor);
      }
      const auto batch = batch_of(step);
      strategy->step(batch.first, batch.second);
      for (nn::Module* replica : strategy->replicas())
        EXPECT_EQ(weights_of(*replica), weights_of(strategy->model())) << name;
    }
    for (const NamedTensor& each : strategy->model().named_parameters())
      EXPECT_EQ(values_in(each.tensor) == before[each.name], each.tensor.shape().dims() == 1)
          << name << ": " << each.name;
    EXPECT_THAT(message_of([&] { strategy->optimizer().set_lr_factor(2, 1); }),
                HasSubstr("set_lr_factor: group 2 does not exist"))
        << name;
  }
}

TEST(StrategyRates, ARateThatIsSetOnTheOptimizerReachesAll) {
  for (const std::string name : {"mirrored", "model_parallel"}) {
    const auto strategy = make_strategy(name, training_in_groups(), two_cpus(name));
    strategy->optimizer().set_lr(0);
    const std::vector<float> before = weights_of(strategy->model());
    const auto batch = batch_of(0);
    strategy->step(batch.first, batch.second);
    for (nn::Module* replica : strategy->replicas()) EXPECT_EQ(weights_of(*replica), before) << name;
    for (optim::Optimizer* optimizer : strategy->optimizers()) EXPECT_EQ(optimizer->lr(), 0) << name;
    EXPECT_THAT(message_of([&] { strategy->optimizer().add_group({.parameters = {}}); }),
                HasSubstr(fmt::format("the optimizer belongs to strategy '{}'", name)));
  }
}

// `never` has no part in the loss. `seldom` has one where the first sample's first value is large: on one device of
// two.
struct PartlyUsed : nn::Module {
  nn::Linear used{72, 3}, never{72, 3}, seldom{72, 3};
  PartlyUsed() {
    add("used", used);
    add("never", never);
    add("seldom", seldom);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor flat = flatten(x), all = used(flat);
    return x.to(cpu_device()).data<float>()[0] > 100 ? all + seldom(flat) : all;
  }
};

Training partly_used() {
  Training training = training_of_net();
  training.model = [] {
    manual_seed(7);
    return std::make_unique<PartlyUsed>();
  };
  training.optimizer = [](std::vector<NamedTensor> parameters) -> std::unique_ptr<optim::Optimizer> {
    return std::make_unique<optim::SGD>(std::move(parameters),
                                        optim::SGDOptions{.lr = 0.01F, .momentum = 0.9F, .weight_decay = 0.1F});
  };
  return training;
}

constexpr int kPartlySteps = 4;
std::pair<Tensor, Tensor> partly_used_batch(int step) {
  auto batch = batch_of(step);
  batch.first.span<float>()[0] = step == 2 ? 101.0F : 0.0F;
  return batch;
}

std::vector<float> partly_used_by_ranks(const std::string& name, int ranks, int servers = 0) {
  std::vector<float> weights;
  testing::expect_all_well(testing::run_ranks(ranks + servers, servers > 0 ? "shm" : "threads", [&](Group group) {
    StrategyOptions options{.group = group};
    if (servers > 0)
      options.parameter_server.servers = servers;
    else
      options.ddp = DistributedDataParallelOptions{.find_unused_parameters = true};
    const auto strategy = make_strategy(name, partly_used(), options);
    if (auto* const server = strategy->as<ParameterHolder>()) return server->serve();
    const std::int64_t each = kBatch / ranks;
    const Range rows{.start = group->rank() * each, .stop = (group->rank() + 1) * each};
    for (int step = 0; step < kPartlySteps; ++step) {
      const auto batch = partly_used_batch(step);
      strategy->step(slice(batch.first, 0, rows), slice(batch.second, 0, rows));
    }
    if (group->rank() == 0) weights = weights_of(strategy->model());
  }));
  return weights;
}

std::vector<float> partly_used_alone(const std::string& name) {
  const auto strategy = make_strategy(name, partly_used(), on_cpus(0, 2));
  for (int step = 0; step < kPartlySteps; ++step) {
    const auto batch = partly_used_batch(step);
    strategy->step(batch.first, batch.second);
  }
  return weights_of(strategy->model());
}

TEST(StrategyGradients, AParameterThatNoneReachedIsLeftAloneAsUnderDdp) {
  const std::vector<float> ddp = partly_used_by_ranks("ddp", 2);
  const auto fresh = partly_used().model();
  const std::vector<float> before = weights_of(*fresh);
  const auto begin_of = [&](int layer) { return static_cast<std::ptrdiff_t>(layer * (72 * 3 + 3)); };
  const auto layer_of = [&](const std::vector<float>& all, int layer) {
    return std::vector<float>(all.begin() + begin_of(layer), all.begin() + begin_of(layer + 1));
  };
  EXPECT_NE(layer_of(ddp, 0), layer_of(before, 0));
  EXPECT_EQ(layer_of(ddp, 1), layer_of(before, 1)) << "no weight decay";
  EXPECT_NE(layer_of(ddp, 2), layer_of(before, 2)) << "one of two ranks used it in one step";
  EXPECT_EQ(partly_used_by_ranks("zero", 2), ddp);
  EXPECT_EQ(partly_used_by_ranks("parameter_server", 2, 1), ddp);
  EXPECT_EQ(partly_used_by_ranks("parameter_server", 2, 2), ddp);
  for (const char* name : {"mirrored", "towers"}) EXPECT_EQ(partly_used_alone(name), ddp) << name;
  for (const std::string& name : testing::strategies_of_one_process()) {
    const std::vector<float> weights = partly_used_alone(name);
    EXPECT_EQ(layer_of(weights, 1), layer_of(before, 1)) << name;
    EXPECT_LT(largest_difference(weights, ddp), 1e-5F) << name;
  }
}

// A layer with a parameter that its forward leaves out.
TEST(StrategyGradients, AStageLeavesItAloneToo) {
  Training training = partly_used();
  training.model = [] {
    manual_seed(7);
    auto net = std::make_unique<nn::Sequential>();
    net->append<PartlyUsed>();
    net->append<nn::Linear>(3, 3);
    return net;
  };
  const auto strategy = make_strategy("model_parallel", training, on_cpus(0, 2));
  const std::vector<NamedTensor> parameters = strategy->model().named_parameters();
  std::vector<std::vector<float>> before;
  for (const NamedTensor& each : parameters) before.push_back(values_in(each.tensor));
  const auto batch = batch_of(0);
  strategy->step(batch.first, batch.second);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    EXPECT_EQ(values_in(parameters[i].tensor) == before[i], parameters[i].name.find("never") != std::string::npos ||
                                                                parameters[i].name.find("seldom") != std::string::npos)
        << parameters[i].name;
}

TEST(StrategyGradients, ClonesLeaveItAloneAndSaySo) {
  const DeployedModel deployed =
      deploy({.num_clones = 2, .devices = on_cpus(0, 2).devices}, partly_used(),
             {.next_batch = [step = 0]() mutable -> std::optional<std::pair<Tensor, Tensor>> {
               return partly_used_batch(step++);
             }});
  for (int step = 0; step < kPartlySteps; ++step) deployed.train_op.run();
  EXPECT_LT(largest_difference(weights_of(deployed.clones->variables()), partly_used_by_ranks("ddp", 2)), 1e-6F);
  const auto batch = partly_used_batch(0);
  const OptimizedClones optimized = optimize_clones(*deployed.clones, batch.first, batch.second, partly_used().loss);
  for (const NamedTensor& each : optimized.gradients)
    EXPECT_EQ(each.tensor.defined(), each.name.starts_with("used.")) << each.name;
}

void expect_equal_buffers(Strategy& strategy, const std::string& when) {
  const auto replicas = strategy.replicas();
  const std::vector<NamedTensor> first = replicas[0]->named_buffers();
  ASSERT_FALSE(first.empty());
  for (nn::Module* replica : replicas) {
    const std::vector<NamedTensor> other = replica->named_buffers();
    for (std::size_t i = 0; i < first.size(); ++i)
      EXPECT_EQ(values_in(other[i].tensor), values_in(first[i].tensor)) << when;
  }
}

// The statistics of the first device's samples, which are those that a checkpoint has.
TEST(StrategyBuffers, AreEqualOnAllReplicasAfterAStep) {
  const auto mirrored = make_strategy("mirrored", training_of_net(), on_cpus(0, 3));
  for (int step = 0; step < 3; ++step) {
    const auto batch = batch_of(step);
    mirrored->step(batch.first, batch.second);
    expect_equal_buffers(*mirrored, fmt::format("step {}", step));
  }
  for (const NamedTensor& buffer : mirrored->model().named_buffers()) buffer.tensor.fill(0.25F);
  mirrored->model().eval();
  const auto batch = batch_of(3);
  mirrored->step(batch.first, batch.second);
  expect_equal_buffers(*mirrored, "after others were loaded");
  EXPECT_EQ(values_in(mirrored->model().named_buffers()[0].tensor)[0], 0.25F);
}

// The record of a strategy's name is true of the strategy that the name makes.
TEST(StrategyKinds, HaveTheirNameAndCapabilities) {
  Training training = training_of_net();
  training.model = [] {
    auto layers = std::make_unique<nn::Sequential>();
    for (int i = 0; i < 2; ++i) layers->append<nn::Linear>(3, 3);
    return layers;
  };
  for (const StrategyKind& kind : strategies()) {
    EXPECT_EQ(&strategy_named(kind.name), &kind);
    const StrategyCapabilities& can = kind.capabilities;
    if (can.has_servers) continue;  // needs a job of two
    const auto strategy = make_strategy(kind.name, training, can.has_ranks ? StrategyOptions() : on_cpus(0, 2));
    EXPECT_EQ(strategy->name(), std::string(kind.name));
    EXPECT_EQ(strategy->workers() != nullptr, can.has_ranks) << kind.name;
    EXPECT_EQ(strategy->wrapper() != nullptr, can.has_wrapper) << kind.name;
    EXPECT_EQ(strategy->as<PipelineStages>() != nullptr, can.has_stages) << kind.name;
    EXPECT_EQ(strategy->as<WeightAverager>() != nullptr, can.averages_weights) << kind.name;
    EXPECT_EQ(strategy->as<ParameterHolder>(), nullptr) << kind.name;
  }
  EXPECT_THAT(message_of([] { strategy_named(""); }), HasSubstr("unknown strategy ''"));
}

}  // namespace
}  // namespace lockstep::train

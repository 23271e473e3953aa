// Dropout masks belong to samples. Compares every strategy that divides a batch among workers, on one and several ranks
// fed by a DataLoader, with a plain loop over all samples.
#include <gtest/gtest.h>

#include "lockstep/train/deploy.h"
#include "tests/ddp/ranks.h"
#include "tests/support/strategies_of_one_process.h"
#include "tests/train/strategy_training.h"
#include "tests/train/trainer_parts.h"

namespace lockstep::train {
namespace {

using TakeStep = std::function<void(const Tensor& inputs, const Tensor& targets)>;

// No layer combines samples, and no step depends on gradients of earlier ones.
Training training_of_dropping_net() {
  Training training = training_of_net();
  training.model = [] {
    manual_seed(7);
    auto net = std::make_unique<nn::Sequential>();
    net->append_named<nn::Linear>("hidden", 2, 16, nn::LinearLayerOptions{.activation = Activation::kReLU});
    net->append_named<nn::Dropout>("drop", 0.25F);
    net->append_named<nn::Linear>("wide", 16, 16, nn::LinearLayerOptions{.activation = Activation::kReLU});
    net->append_named<nn::Dropout>("drop2", 0.25F);
    net->append_named<nn::Linear>("out", 16, 4);
    return net;
  };
  training.optimizer = [](std::vector<NamedTensor> parameters) -> std::unique_ptr<optim::Optimizer> {
    return std::make_unique<optim::SGD>(std::move(parameters), optim::SGDOptions{.lr = 0.2F});
  };
  return training;
}

Place place_of(int rank, int ranks) { return {rank, ranks, rank, ranks}; }

// Feeds two epochs of batches of kBatch samples over all ranks.
void feed(const Place& place, const TakeStep& take_step) {
  const Quadrants set(5 * kBatch);
  data::DistributedSampler sampler(set.size(), place, {.shuffle = true, .seed = 3});
  manual_seed(11);
  for (int epoch = 0; epoch < 2; ++epoch) {
    sampler.set_epoch(epoch);
    for (auto& [inputs, targets] : data::DataLoader(set, sampler, {.batch_size = kBatch / place.world_size})) {
      const SampleNumbers numbers = sample_numbers();
      take_step(inputs, targets);
      EXPECT_EQ(sample_numbers(), numbers) << "a step must not change the thread's numbers";
    }
  }
}

std::vector<float> train_plainly(const Place& place) {
  const Training training = training_of_dropping_net();
  const auto net = training.model();
  const auto optimizer = training.optimizer(net->named_parameters());
  feed(place, [&](const Tensor& inputs, const Tensor& targets) {
    optimizer->zero_grad();
    training.loss(*net, (*net)(inputs), targets).backward();
    optimizer->step();
  });
  return weights_of(*net);
}

struct FedStrategy {
  nn::Module* model;
  TakeStep take_step;
  std::function<void()> update_replicas;
};

FedStrategy fed_strategy(const std::string& name, StrategyOptions options) {
  const Training training = training_of_dropping_net();
  if (name == "deploy") {
    const auto clones = std::make_shared<Clones>(create_clones(
        {.num_clones = static_cast<int>(options.devices.size()), .devices = options.devices}, training.model));
    const std::shared_ptr<optim::Optimizer> optimizer = training.optimizer(clones->parameters());
    return {&clones->variables(),
            [=, loss = training.loss](const Tensor& inputs, const Tensor& targets) {
              optimize_clones(*clones, inputs, targets, loss);
              optimizer->step();
            },
            [] {}};
  }
  if (name == "model_parallel") options.micro_batches = 3;
  const std::shared_ptr<Strategy> strategy = make_strategy(name, training, options);
  return {&strategy->model(), [=](const Tensor& inputs, const Tensor& targets) { strategy->step(inputs, targets); },
          [=] { strategy->update_replicas(); }};
}

// After a step of plain SGD from equal weights, averaged weights equal those of averaged gradients.
void average(ProcessGroup& group, nn::Module& model) {
  std::vector<float> weights = weights_of(model);
  group.all_reduce(std::span(weights), ReduceOp::kAvg);
  std::size_t begin = 0;
  for (const NamedTensor& parameter : model.named_parameters()) {
    const auto count = static_cast<std::size_t>(parameter.tensor.count());
    parameter.tensor.copy_from(Tensor::from<float>(std::span(weights).subspan(begin, count), parameter.tensor.shape()));
    begin += count;
  }
}

std::vector<float> train_on_ranks(const std::string& name, int ranks, int devices) {
  std::vector<std::vector<float>> weights(static_cast<std::size_t>(ranks));
  testing::expect_all_well(testing::run_ranks(ranks, "threads", [&](std::shared_ptr<ProcessGroup> group) {
    const FedStrategy fed = fed_strategy(name, on_cpus(group->rank() * devices, devices));
    feed(place_of(group->rank(), ranks), [&](const Tensor& inputs, const Tensor& targets) {
      fed.take_step(inputs, targets);
      average(*group, *fed.model);
      fed.update_replicas();
    });
    weights[static_cast<std::size_t>(group->rank())] = weights_of(*fed.model);
  }));
  return weights[0];
}

class SampleNumbersOf : public ::testing::TestWithParam<std::string> {};

TEST_P(SampleNumbersOf, DependOnNeitherRanksNorDevices) {
  const std::vector<float> expected = train_plainly({});
  EXPECT_GT(largest_difference(expected, weights_of(*training_of_dropping_net().model())), 0.01F)
      << "unchanged weights would prove nothing";
  EXPECT_GT(largest_difference(expected, train_plainly(place_of(1, 2))), 0.01F);
  for (const auto& [ranks, devices] : {std::pair{1, 1}, {1, 2}, {1, 4}, {2, 1}, {2, 2}, {4, 1}})
    EXPECT_LT(largest_difference(train_on_ranks(GetParam(), ranks, devices), expected), 1e-5F)
        << ranks << " ranks, " << devices << " devices each";
}

std::vector<std::string> strategies_and_deploy() {
  std::vector<std::string> names = testing::strategies_of_one_process(testing::Stages::kToo);
  names.emplace_back("deploy");
  return names;
}
INSTANTIATE_TEST_SUITE_P(Strategies, SampleNumbersOf, ::testing::ValuesIn(strategies_and_deploy()),
                         [](const auto& tested) { return tested.param; });

// One of two pipelines, whose ranks pass on all samples of their own.
TEST(SampleNumbersOfStages, AreThoseOfTheCallersBatch) {
  const std::vector<float> expected = train_plainly(place_of(1, 2));
  testing::expect_all_well(testing::run_ranks(2, "threads", [&](std::shared_ptr<ProcessGroup> group) {
    const auto strategy =
        make_strategy("model_parallel", training_of_dropping_net(), {.group = group, .micro_batches = 3});
    feed(place_of(1, 2), [&](const Tensor& inputs, const Tensor& targets) { strategy->step(inputs, targets); });
    EXPECT_LT(largest_difference(weights_of(strategy->model()), expected), 1e-5F);
  }));
}

}  // namespace
}  // namespace lockstep::train

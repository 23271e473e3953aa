// train/deploy.h: Slim's rules for devices and scopes, what clones compute against one device and against towers, and
// the training loop.
#include "lockstep/train/deploy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/support/log_lines.h"
#include "tests/support/message_of.h"
#include "tests/train/checkpoint_folder.h"
#include "tests/train/event_records.h"
#include "tests/train/strategy_training.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::Folder;
using ::testing::HasSubstr;
using testing::LogLines;

DeploymentConfig clones_on_cpus(int num_clones) { return {.num_clones = num_clones, .devices = on_cpus(0, 4).devices}; }

// Without statistics of a batch: parts of it give what the whole gives.
Training training_of_plain_net() {
  Training training = training_of_net();
  training.model = [] {
    manual_seed(7);
    auto net = std::make_unique<nn::Sequential>();
    net->append_named<nn::Conv2d>("conv", 2, 4, Size2{3, 3}, nn::Conv2dLayerOptions{.activation = Activation::kReLU});
    net->append<nn::Flatten>();
    net->append_named<nn::Linear>("out", 64, 3);
    return net;
  };
  return training;
}

DeployOptions batches(int count) {
  return {.next_batch = [step = 0, count]() mutable -> std::optional<data::Batch> {
    if (step == count) return std::nullopt;
    return batch_of(step++);
  }};
}

TEST(DeploymentConfig, SlimsDevicesAndScopes) {
  const auto devices = on_cpus(0, 4).devices;
  struct Row {
    DeploymentConfig config;
    const char *variables, *inputs, *optimizer, *last_clone, *last_scope;
  };
  const Row rows[] = {
      {{.devices = devices}, "/device:cpu:0", "/device:cpu:0", "/device:cpu:0", "/device:cpu:0", ""},
      {{.num_clones = 2, .devices = devices},
       "/device:cpu:0",
       "/device:cpu:0",
       "/device:cpu:0",
       "/device:cpu:1",
       "clone_1"},
      {{.num_clones = 9, .clone_on_cpu = true},
       "/device:cpu:0",
       "/device:cpu:0",
       "/device:cpu:0",
       "/device:cpu:0",
       "clone_8"},
      {{.num_clones = 3, .replica_id = 1, .num_replicas = 2, .num_ps_tasks = 2, .devices = devices},
       "/job:ps/task:0/device:cpu:0",
       "/job:worker/device:cpu:0",
       "/job:worker/device:cpu:0",
       "/job:worker/device:cpu:2",
       "clone_2"},
      {{.num_ps_tasks = 1, .worker_job_name = "w", .ps_job_name = "p", .devices = devices},
       "/job:p/task:0/device:cpu:0",
       "/job:w/device:cpu:0",
       "/job:w/device:cpu:0",
       "/job:w/device:cpu:0",
       ""},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(row.config.variables_device().name(), row.variables);
    EXPECT_EQ(row.config.inputs_device().name(), row.inputs);
    EXPECT_EQ(row.config.optimizer_device().name(), row.optimizer);
    EXPECT_EQ(row.config.clone_device(row.config.num_clones - 1).name(), row.last_clone);
    EXPECT_EQ(row.config.clone_scope(row.config.num_clones - 1), row.last_scope);
  }
  const DeploymentConfig& with_servers = rows[3].config;
  EXPECT_EQ(with_servers.variables_device(1).name(), "/job:ps/task:1/device:cpu:0") << "variables take turns";
  EXPECT_EQ(with_servers.variables_device(2).name(), "/job:ps/task:0/device:cpu:0");
}

TEST(DeploymentConfig, WhatIsRefused) {
  const auto refused = [](const DeploymentConfig& config) { return message_of([&] { config.variables_device(); }); };
  EXPECT_THAT(refused({.num_clones = 0}), HasSubstr("num_clones is 0: at least one"));
  EXPECT_THAT(refused({.replica_id = 2, .num_replicas = 2, .num_ps_tasks = 1}),
              HasSubstr("replica_id is 2, num_replicas 2: it must be from 0 to 1"));
  EXPECT_THAT(refused({.replica_id = -1}), HasSubstr("replica_id is -1"));
  EXPECT_THAT(refused({.num_replicas = 0}), HasSubstr("num_replicas is 0"));
  EXPECT_THAT(refused({.num_replicas = 2}), HasSubstr("2 replicas have no parameter server to share variables by"));
  EXPECT_THAT(refused({.num_ps_tasks = -1}), HasSubstr("num_ps_tasks is -1"));
  EXPECT_THAT(refused({.num_ps_tasks = 1, .ps_job_name = ""}), HasSubstr("both jobs need a name"));
  const DeploymentConfig two = clones_on_cpus(2), five = clones_on_cpus(5);
  EXPECT_THAT(message_of([&] { two.clone_device(2); }), HasSubstr("there is no clone 2: num_clones is 2"));
  EXPECT_THAT(message_of([&] { two.clone_scope(-1); }), HasSubstr("there is no clone -1"));
  EXPECT_THAT(message_of([&] { five.clone_device(0); }),
              HasSubstr("5 clones need as many devices, there are 4 (cpu:0, cpu:1, cpu:2, cpu:3)"));
  DeploymentConfig twice = clones_on_cpus(3);
  twice.devices[2] = twice.devices[0];
  EXPECT_THAT(message_of([&] { create_clones(twice, training_of_net().model); }),
              HasSubstr(".devices[2] is cpu:0, and so is .devices[0]: each clone has a device of its own"));
  EXPECT_THAT(message_of([&] { create_clones({.num_ps_tasks = 1}, training_of_net().model); }),
              HasSubstr("num_ps_tasks is 1"));
  EXPECT_THAT(message_of([&] { create_clones(five, training_of_net().model); }),
              HasSubstr("5 clones need as many devices"));
}

// The gradients of a backward pass over the whole batch on one device.
TEST(Deploy, LossAndGradientsAreThoseOfTheWholeBatch) {
  const Training training = training_of_plain_net();
  const auto net = training.model();
  const auto batch = batch_of(0);
  const Tensor loss = training.loss(*net, (*net)(batch.first), batch.second);
  loss.backward();
  for (const int num_clones : {1, 2, 3, 4}) {
    const Clones clones = create_clones(clones_on_cpus(num_clones), training.model);
    const OptimizedClones optimized = optimize_clones(clones, batch.first, batch.second, training.loss);
    EXPECT_NEAR(optimized.losses.total, loss.item(), 1e-5F);
    ASSERT_EQ(optimized.gradients.size(), net->named_parameters().size());
    for (std::size_t p = 0; p < optimized.gradients.size(); ++p) {
      const NamedTensor expected = net->named_parameters()[p];
      EXPECT_EQ(optimized.gradients[p].name, expected.name);
      const auto is = optimized.gradients[p].tensor.span<float>(), of_one = grad(expected.tensor).span<float>();
      for (std::size_t i = 0; i < is.size(); ++i)
        ASSERT_NEAR(is[i], of_one[i], 1e-5F) << expected.name << " of " << num_clones << " clones";
      EXPECT_EQ(grad(clones.parameters()[p].tensor).span<float>()[0], is[0]) << "an optimizer's step takes it";
    }
    ASSERT_EQ(optimized.losses.clones.size(), static_cast<std::size_t>(num_clones));
    EXPECT_EQ(optimized.losses.clones[0].name, num_clones == 1 ? "clone_loss" : "clone_0/clone_loss");
    EXPECT_EQ(clones.all().back().outputs.shape(), Shape({kBatch / num_clones, 3}));
  }
}

TEST(Deploy, GradientsStayWhereTheyAre) {
  const Training training = training_of_plain_net();
  const Clones clones = create_clones(clones_on_cpus(2), training.model);
  const auto step = [&](int number) {
    const auto batch = batch_of(number);
    return optimize_clones(clones, batch.first, batch.second, training.loss).gradients;
  };
  const auto first = step(0), second = step(1);
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].tensor.data<float>(), second[i].tensor.data<float>())
        << first[i].name << ": a step allocates none";
    EXPECT_EQ(grad(clones.parameters()[i].tensor).data<float>(), first[i].tensor.data<float>());
  }
}

TEST(Deploy, AClonesLossIsScaledAndNamed) {
  const Tensor loss = Tensor::full({1}, 3);
  const Clone clone{.scope = "clone_1"};
  EXPECT_EQ(gather_clone_loss(clone, loss, 4).name, "clone_1/scaled_clone_loss");
  EXPECT_EQ(gather_clone_loss(clone, loss, 4).tensor.item(), 0.75F);
  EXPECT_EQ(gather_clone_loss({}, loss, 1).name, "clone_loss");
  EXPECT_EQ(gather_clone_loss({}, loss, 1).tensor.item(), 3);
  EXPECT_THAT(message_of([&] { gather_clone_loss(clone, loss, 0); }), HasSubstr("num_clones is 0"));
  EXPECT_THAT(message_of([&] { gather_clone_loss(clone, {}, 2); }),
              HasSubstr("the loss of clone_1/clone_loss is an undefined tensor"));
}

TEST(Deploy, GradientsOfClonesAreSummedByVariable) {
  const auto cpus = on_cpus(0, 2).devices;
  const Tensor first = Tensor::full({2}, 1), second = Tensor::full({2}, 4, *cpus[1]);
  const auto sums =
      sum_clones_gradients({{{"w", first}, {"b", {}}, {"c", {}}}, {{"w", second}, {"b", second}, {"c", {}}}}, *cpus[0]);
  EXPECT_EQ(sums[0].tensor.span<float>()[1], 5);
  EXPECT_EQ(sums[1].tensor.span<float>()[1], 4);
  EXPECT_FALSE(sums[2].tensor.defined());
  EXPECT_EQ(first.span<float>()[0], 1) << "the clone's own is as it was";
  EXPECT_THAT(message_of([&] {
                sum_clones_gradients({{{"w", first}}, {}}, *cpus[0]);
              }),
              HasSubstr("clone 1 has 0 gradients but clone 0 has 1"));
  EXPECT_THAT(message_of([&] {
                sum_clones_gradients({{{"w", first}}, {{"v", second}}}, *cpus[0]);
              }),
              HasSubstr("gradient 0 of clone 1 is 'v' of shape (2), of clone 0 'w'"));
  EXPECT_THAT(message_of([&] { sum_clones_gradients({}, *cpus[0]); }), HasSubstr("there is no clone"));
}

TEST(Deploy, AverageGradientsIsTheTutorials) {
  const auto cpus = on_cpus(0, 2).devices;
  const Tensor first = Tensor::from<float>(std::vector<float>{1, 2}, {2}), second = Tensor::full({2}, 4, *cpus[1]);
  const auto means = average_gradients({{{"w", first}, {"b", {}}}, {{"w", second}, {"b", {}}}});
  ASSERT_EQ(means.size(), 2u);
  EXPECT_EQ(means[0].name, "w");
  EXPECT_EQ(means[0].tensor.span<float>()[0], 2.5F);
  EXPECT_EQ(means[0].tensor.span<float>()[1], 3);
  EXPECT_FALSE(means[1].tensor.defined());
  EXPECT_EQ(first.span<float>()[0], 1) << "a tower's own gradient stays";
  EXPECT_EQ(average_gradients({{{"w", first}}})[0].tensor.span<float>()[1], 2);
  EXPECT_THAT(message_of([] { average_gradients({}); }), HasSubstr("there is no clone"));
}

// Batch normalisation and dropout are in this one.
TEST(Deploy, TrainsToTheWeightsOfTowers) {
  for (const int num_clones : {1, 2, 3, 4}) {
    const auto towers = make_strategy("towers", training_of_net(), on_cpus(0, num_clones));
    manual_seed(11);
    for (int step = 0; step < kSteps; ++step) {
      const auto batch = batch_of(step);
      towers->step(batch.first, batch.second);
    }
    const DeployedModel deployed = deploy(clones_on_cpus(num_clones), training_of_net(), batches(kSteps));
    manual_seed(11);
    while (deployed.train_op.run()) {
    }
    const float difference = largest_difference(weights_of(towers->model()), weights_of(deployed.clones->variables()));
    if (num_clones == 3)
      EXPECT_LT(difference, 2e-4F) << "a third is rounded before the sum, or behind it";
    else
      EXPECT_EQ(difference, 0) << num_clones << " clones";
  }
}

TEST(Deploy, RegularizationCountsOnce) {
  const Training training = training_of_plain_net();
  const auto batch = batch_of(0);
  const RegularizationFunction penalty = [](nn::Module& clone) {
    const Tensor w = clone.parameters()[0];
    return sum(w * w);
  };
  const Clones two = create_clones(clones_on_cpus(2), training.model);
  const auto without = optimize_clones(two, batch.first, batch.second, training.loss);
  const float gradient = without.gradients[0].tensor.span<float>()[5];
  const auto with = optimize_clones(two, batch.first, batch.second, training.loss, penalty);
  ASSERT_TRUE(with.losses.regularization.has_value());
  EXPECT_NEAR(with.losses.total, without.losses.total + *with.losses.regularization, 1e-5F);
  EXPECT_NEAR(with.gradients[0].tensor.span<float>()[5], gradient + 2 * two.parameters()[0].tensor.span<float>()[5],
              1e-5F);
}

TEST(Deploy, RefusesWhatIsMissing) {
  EXPECT_THAT(message_of([&] { deploy(clones_on_cpus(2), training_of_net(), {}); }),
              HasSubstr("needs .next_batch or .reader"));
  EXPECT_THAT(message_of([&] { deploy(clones_on_cpus(2), {}, batches(1)); }), HasSubstr("Training needs all of"));
  const Clones clones = create_clones(clones_on_cpus(4), training_of_net().model);
  const auto batch = batch_of(0);
  EXPECT_THAT(message_of([&] {
                optimize_clones(clones, slice(batch.first, 0, {.stop = 10}), slice(batch.second, 0, {.stop = 10}),
                                training_of_net().loss);
              }),
              HasSubstr("deploy: 10 samples per step cannot be split evenly among 4 devices"));
}

}  // namespace
}  // namespace lockstep::train

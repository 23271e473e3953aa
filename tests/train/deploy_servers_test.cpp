// deploy() with parameter servers: a worker's losses are those of deploy() in one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "tests/ddp/ranks.h"
#include "tests/support/message_of.h"
#include "tests/train/strategy_training.h"

namespace lockstep::train {
namespace {

using ::testing::HasSubstr;
using Group = std::shared_ptr<ProcessGroup>;

// A net whose module adds a loss, without statistics of a batch.
struct AddingNet : nn::Module {
  nn::Linear out{72, 3};
  AddingNet() { add("out", out); }
  Tensor forward(const Tensor& x) override {
    nn::add_loss(0.01F * l2_loss(out.bias), "bias");
    return out(flatten(x));
  }
};

Training training_of_adding_net() {
  Training training = training_of_net();
  training.model = [] {
    manual_seed(7);
    return std::make_unique<AddingNet>();
  };
  return training;
}

DeployOptions batches(const Group& group, std::atomic<int>* penalties) {
  DeployOptions options{.next_batch = [step = 0]() mutable -> std::optional<data::Batch> { return batch_of(step++); },
                        .group = group};
  if (penalties != nullptr)
    options.regularization = [penalties](nn::Module& clone) {
      ++*penalties;
      return 0.1F * l2_loss(clone.parameters().front());
    };
  return options;
}

std::vector<CloneLosses> losses_of_steps(const DeployedModel& deployed) {
  std::vector<CloneLosses> all;
  for (int step = 0; step < 4; ++step) deployed.train_op.run(), all.push_back(*deployed.losses);
  return all;
}

TEST(DeployOnServers, LossesOfAllClonesAndOneRegularizationAreThoseOfOneProcess) {
  for (const int clones : {1, 2, 4})
    for (const bool regularizes : {false, true}) {
      const auto devices = on_cpus(0, clones).devices;
      std::atomic<int> penalties{0}, unused{0};
      const auto expected = losses_of_steps(deploy({.num_clones = clones, .devices = devices}, training_of_adding_net(),
                                                   batches(nullptr, regularizes ? &unused : nullptr)));
      std::vector<CloneLosses> losses;
      testing::expect_all_well(testing::run_ranks(2, "shm", [&](const Group& group) {
        const DeployedModel deployed =
            deploy({.num_clones = clones, .num_ps_tasks = 1, .devices = devices}, training_of_adding_net(),
                   batches(group, regularizes ? &penalties : nullptr));
        if (deployed.train_op.serve) return deployed.train_op.serve();
        losses = losses_of_steps(deployed);
      }));
      EXPECT_EQ(penalties, regularizes ? 4 : 0) << "once in each of four steps, with " << clones << " clones";
      ASSERT_EQ(losses.size(), expected.size());
      for (std::size_t step = 0; step < losses.size(); ++step) {
        EXPECT_NEAR(losses[step].total, expected[step].total, 1e-5F);
        ASSERT_EQ(losses[step].clones.size(), static_cast<std::size_t>(clones));
        for (std::size_t i = 0; i < losses[step].clones.size(); ++i) {
          EXPECT_EQ(losses[step].clones[i].name, expected[step].clones[i].name);
          EXPECT_NEAR(losses[step].clones[i].value, expected[step].clones[i].value, 1e-5F)
              << losses[step].clones[i].name << " in step " << step;
        }
        ASSERT_EQ(losses[step].regularization.has_value(), regularizes);
        EXPECT_NEAR(losses[step].regularization.value_or(0), expected[step].regularization.value_or(0), 1e-6F);
      }
    }
}

TEST(DeployOnServers, WhatOneProcessRefusesAWorkerRefuses) {
  const auto failures = testing::run_ranks(2, "shm", [&](const Group& group) {
    DeployOptions options = batches(group, nullptr);
    options.regularization = [](nn::Module& clone) { return clone.parameters().front(); };
    const DeployedModel deployed =
        deploy({.num_clones = 2, .num_ps_tasks = 1, .devices = on_cpus(0, 2).devices}, training_of_net(), options);
    if (deployed.train_op.serve) return deployed.train_op.serve();
    deployed.train_op.run();
  });
  EXPECT_THAT(failures[0], HasSubstr("deploy: .regularization returned a tensor of shape "));
  const auto uneven = testing::run_ranks(2, "shm", [&](const Group& group) {
    const DeployOptions options{
        .next_batch = []() -> std::optional<data::Batch> {
          const auto batch = batch_of(0);
          return data::Batch{slice(batch.first, 0, {.stop = 10}), slice(batch.second, 0, {.stop = 10})};
        },
        .group = group};
    const DeployedModel deployed =
        deploy({.num_clones = 4, .num_ps_tasks = 1, .devices = on_cpus(0, 4).devices}, training_of_net(), options);
    if (deployed.train_op.serve) return deployed.train_op.serve();
    deployed.train_op.run();
  });
  EXPECT_THAT(uneven[0], HasSubstr("deploy: 10 samples per step cannot be split evenly among 4 devices"));
}

}  // namespace
}  // namespace lockstep::train

// If ranks skip a batch or use other rates, weights or parameters, all of them throw in the next pass.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "lockstep/autograd/engine.h"
#include "lockstep/data/loader.h"
#include "lockstep/ddp/ddp.h"
#include "lockstep/ddp/step_in_backward.h"
#include "lockstep/ddp/zero.h"
#include "lockstep/nn/layers.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/reduce/hooks.h"
#include "tests/ddp/ranks.h"
#include "tests/ddp/training.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

class OutOfStep : public OverRanks {
 protected:
  // Expects all ranks to throw with this text.
  void expect_named(const Body& body, const ::testing::Matcher<std::string>& text) const {
    EXPECT_THAT(failures_of(body), Each(text));
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, OutOfStep,
                         ::testing::Combine(::testing::Values("threads", "shm", "tcp"), ::testing::Values(2, 3)),
                         OverRanks::name);

TEST_P(OutOfStep, ALossThatReachesNoParameterIsNamedInTheNextPass) {
  int steps = 0;  // made by rank 0
  expect_named(
      [&](auto group) {
        RankTraining training(group);
        for (int step = 0; step < 6; ++step) {
          training.sgd.zero_grad();
          const Tensor apart = Tensor::full({1}, 1);
          require_grad(apart);
          if (step == 2 && training.is_odd())
            sum(apart).backward();
          else
            training.loss().backward();
          training.sgd.step();
          if (group->rank() == 0) ++steps;
        }
      },
      AllOf(HasSubstr("out of step in the backward pass of step 3"), HasSubstr("optimizer steps before it: "),
            HasSubstr("3 on rank 1"), HasSubstr("on all ranks or on none")));
  EXPECT_EQ(steps, 2) << "gradients of different steps must not be averaged";
}

TEST_P(OutOfStep, ABatchLeftOutAfterZeroGradIsNamedInTheNextPass) {
  expect_named(
      [](auto group) {
        RankTraining training(group);
        for (int step = 0; step < 6; ++step) {
          training.sgd.zero_grad();
          const Tensor loss = training.loss();
          if (step == 2 && training.is_odd()) continue;  // as if the loss were NaN
          loss.backward();
          training.sgd.step();
        }
      },
      AllOf(HasSubstr("backward pass of step 3"), HasSubstr("steps begun by zero_grad(): "), HasSubstr("4 on rank 1")));
}

TEST_P(OutOfStep, ABatchOfALoaderLeftOutIsNamedInTheNextPass) {
  expect_named(
      [](auto group) {
        RankTraining training(group);
        const Numbers set;
        const data::DistributedSampler sampler(set.size(), group->place(), {.shuffle = false});
        int number = 0;
        for (auto& batch : data::DataLoader(set, sampler, {.batch_size = 2})) {
          if (number++ == 1 && training.is_odd()) continue;  // before any part of the step
          training.sgd.zero_grad();
          training.loss(batch[0]).backward();
          training.sgd.step();
        }
      },
      AllOf(HasSubstr("backward pass of step 2"), HasSubstr("batch of the loader: "), HasSubstr("3 on rank 1")));
}

TEST_P(OutOfStep, ARateOfOneRankIsNamed) {
  expect_named(
      [](auto group) {
        RankTraining training(group);
        training.step();
        if (training.is_odd()) training.sgd.set_lr(0.0625F);
        training.step();
      },
      AllOf(HasSubstr("backward pass of step 2"), HasSubstr("learning rate: "), HasSubstr("0.0625 on rank 1"),
            HasSubstr("0.125 on rank"), HasSubstr("average a metric")));
}

TEST_P(OutOfStep, RatesOfAllGroupsAreCompared) {
  expect_named(
      [](auto group) {
        TwoLayers net;
        DistributedDataParallel ddp(net, group);
        optim::SGD sgd({{"w", net.first.weight}, {"b", net.first.bias}}, {.lr = 0.125F});
        sgd.add_group({.parameters = {{"w2", net.last.weight}, {"b2", net.last.bias}}});
        sum(ddp(Tensor::full({2, 4}, 1))).backward();
        if (group->rank() == 1) sgd.set_lr_factor(1, 0.5F);
        sgd.zero_grad();
        sum(ddp(Tensor::full({2, 4}, 1))).backward();
      },
      AllOf(HasSubstr("backward pass of step 2"), HasSubstr("learning rates of all groups"), HasSubstr("on rank 1")));
}

TEST_P(OutOfStep, AParameterFrozenOnOneRankIsNamed) {
  expect_named(
      [](auto group) {
        RankTraining training(group);
        training.pass();
        if (training.is_odd()) require_grad(training.net.first.bias, false);
        sum(training.ddp(Tensor::full({2, 4}, 1))).backward();
      },
      AllOf(HasSubstr("backward pass of step 2"), HasSubstr("trained parameters: "), HasSubstr("3 on rank 1")));
}

TEST_P(OutOfStep, AParameterUnfrozenAfterWrappingIsNamedOnOneRankAndOnAll) {
  for (const bool on_all : {false, true})
    expect_named(
        [on_all](auto group) {
          TwoLayers net;
          net.first.freeze();
          DistributedDataParallel ddp(net, group);
          const auto pass = [&] { sum(ddp(Tensor::full({2, 4}, 1))).backward(); };
          pass();
          if (on_all || group->rank() == 1) net.first.freeze(false);
          for (const NamedTensor& parameter : ddp.parameters()) clear_grad(parameter.tensor);
          pass();
        },
        AllOf(HasSubstr(on_all ? "DistributedDataParallel: rank " : "DistributedDataParallel: rank 1"),
              HasSubstr("'first.weight' is no longer frozen"), HasSubstr("then wrap it")));
}

TEST_P(OutOfStep, WeightsThatChangeOnOneRankAreNamed) {
  const std::vector<std::function<void(TwoLayers&)>> changes = {
      [](TwoLayers& net) {
        TwoLayers other;
        for (const auto& [name, tensor] : other.named_parameters()) tensor.fill(0.5F);
        net.load_state_dict(other.state_dict());
      },
      [](TwoLayers& net) {
        net.last.weight.copy_from(Tensor::full({2, 3}, 2));
      }};
  for (const auto& change : changes)
    expect_named(
        [&](auto group) {
          RankTraining training(group);
          training.step();
          if (training.is_odd()) change(training.net);
          training.step();
        },
        AllOf(HasSubstr("backward pass of step 2"), HasSubstr("weights, as a hash of some: "), HasSubstr("on rank 1"),
              HasSubstr("ignored_parameters")));
}

TEST_P(OutOfStep, AFrozenWeightThatChangesOnOneRankIsNamed) {
  expect_named(
      [](auto group) {
        TwoLayers net;
        net.first.freeze();
        DistributedDataParallel ddp(net, group);
        if (group->rank() == 1) net.first.weight.fill(3);
        sum(ddp(Tensor::full({2, 4}, 1))).backward();
      },
      HasSubstr("weights, as a hash of some: "));
}

TEST_P(OutOfStep, PassesOfAnotherWrapperAreNamed) {
  expect_named(
      [](auto group) {
        RankTraining one(group), other(group);
        one.step();
        other.step();
        if (!one.is_odd()) one.step();
        other.step();
      },
      AllOf(HasSubstr("out of step in the backward pass of step 2"), HasSubstr("wrapper: "), HasSubstr("2 on rank 1")));
}

TEST_P(OutOfStep, RatesAreComparedUnderEveryHook) {
  const std::vector<std::function<CommHook()>> makers = {
      [] { return hooks::fp16(); }, [] { return hooks::top_k({.ratio = 0.5F}); },
      [] { return hooks::power_sgd({.matrix_rank = 1, .start_step = 1}); },
      // These hooks make no call in backward, so the next call compares.
      [] { return hooks::no_op(); }, [] { return hooks::post_local_sgd({.start_step = 0}); }};
  for (const auto& make : makers)
    expect_named(
        [&](auto group) {
          RankTraining training(group, {.comm_hook = make()});
          training.step();
          group->barrier();
          if (training.is_odd()) training.sgd.set_lr(0.0625F);
          training.step();
          group->barrier();
        },
        HasSubstr("0.0625 on rank 1"));
}

TEST_P(OutOfStep, RatesAreComparedWithZeroAndInBackward) {
  for (const bool zero : {true, false})
    expect_named(
        [zero](auto group) {
          RankTraining training(group);
          std::unique_ptr<ZeroRedundancyOptimizer> slices;
          std::unique_ptr<StepInBackward> in_backward;
          if (zero)
            slices = std::make_unique<ZeroRedundancyOptimizer>(training.ddp, training.sgd);
          else
            in_backward = std::make_unique<StepInBackward>(training.ddp, training.sgd);
          const auto step = [&] { zero ? training.step() : training.pass(); };
          step();
          if (training.is_odd()) training.sgd.set_lr(0.0625F);
          step();
        },
        HasSubstr("0.0625 on rank 1"));
}

TEST_P(OutOfStep, SetsAreComparedInJoin) {
  expect_named(
      [](auto group) {
        RankTraining training(group);
        training.ddp.join([&] {
          if (training.is_odd()) require_grad(training.net.first.bias, false);
          sum(training.ddp(Tensor::full({2, 4}, 1))).backward();
        });
      },
      HasSubstr("3 on rank 1"));
}

}  // namespace
}  // namespace lockstep::testing

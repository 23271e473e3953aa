// Ranks that leave out a batch, use another rate, other weights or other parameters are an error on all of them in the next pass.
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
#include "lockstep/optim/ema.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/reduce/hooks.h"
#include "tests/ddp/ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

struct Net : nn::Module {
  nn::Linear first{4, 3}, last{3, 2};
  Net() {
    add("first", first);
    add("last", last);
  }
  Tensor forward(const Tensor& x) override { return last(first(x)); }
};

// A training of one rank. Weights do not depend on the rank.
struct Training {
  explicit Training(const std::shared_ptr<ProcessGroup>& all, const DistributedDataParallelOptions& options = {})
      : group(all), ddp(net, all, options), sgd(ddp.parameters(), {.lr = 0.125F}) {}
  Tensor loss(const Tensor& x) { return sum(ddp(x)); }
  Tensor loss() { return loss(Tensor::full({2, 4}, 1.F + static_cast<float>(group->rank()))); }
  void pass() {
    sgd.zero_grad();
    loss().backward();
  }
  void step() {
    pass();
    sgd.step();
  }
  bool is_odd() const { return group->rank() == 1; }  // the rank that does something else

  std::shared_ptr<ProcessGroup> group;
  Net net;
  DistributedDataParallel ddp;
  optim::SGD sgd;
};

class OutOfStep : public OverRanks {
 protected:
  // All ranks throw, and say this.
  void expect_named(const Body& body, const ::testing::Matcher<std::string>& text) const { EXPECT_THAT(failures_of(body), Each(text)); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, OutOfStep, ::testing::Combine(::testing::Values("threads", "shm", "tcp"), ::testing::Values(2, 3)),
                         OverRanks::name);

TEST_P(OutOfStep, ALossThatReachesNoParameterIsNamedInTheNextPass) {
  int steps = 0;  // that rank 0 made
  expect_named(
      [&](auto group) {
        Training training(group);
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
      AllOf(HasSubstr("out of step in the backward pass of step 3"), HasSubstr("optimizer steps before it: "), HasSubstr("3 on rank 1"),
            HasSubstr("on all ranks or on none")));
  EXPECT_EQ(steps, 2) << "no gradients of different steps are averaged";
}

TEST_P(OutOfStep, ABatchLeftOutAfterZeroGradIsNamedInTheNextPass) {
  expect_named(
      [](auto group) {
        Training training(group);
        for (int step = 0; step < 6; ++step) {
          training.sgd.zero_grad();
          const Tensor loss = training.loss();
          if (step == 2 && training.is_odd()) continue;  // as for a loss that is NaN
          loss.backward();
          training.sgd.step();
        }
      },
      AllOf(HasSubstr("backward pass of step 3"), HasSubstr("steps begun by zero_grad(): "), HasSubstr("4 on rank 1")));
}

struct Numbers : data::Dataset {
  std::int64_t size() const override { return 24; }
  data::Sample get(std::int64_t index, std::int64_t) const override { return {{Tensor::full({4}, static_cast<float>(index))}}; }
};

TEST_P(OutOfStep, ABatchOfALoaderLeftOutIsNamedInTheNextPass) {
  expect_named(
      [](auto group) {
        Training training(group);
        const Numbers set;
        const data::DistributedSampler sampler(set.size(), group->place(), {.shuffle = false});
        int number = 0;
        for (auto& batch : data::DataLoader(set, sampler, {.batch_size = 2})) {
          if (number++ == 1 && training.is_odd()) continue;  // before anything of the step
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
        Training training(group);
        training.step();
        if (training.is_odd()) training.sgd.set_lr(0.0625F);
        training.step();
      },
      AllOf(HasSubstr("backward pass of step 2"), HasSubstr("learning rate: "), HasSubstr("0.0625 on rank 1"), HasSubstr("0.125 on rank"),
            HasSubstr("average a metric")));
}

TEST_P(OutOfStep, ARateOfAFurtherGroupIsCompared) {
  expect_named(
      [](auto group) {
        Net net;
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
        Training training(group);
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
          Net net;
          net.first.freeze();
          DistributedDataParallel ddp(net, group);
          const auto pass = [&] { sum(ddp(Tensor::full({2, 4}, 1))).backward(); };
          pass();
          if (on_all || group->rank() == 1) net.first.freeze(false);
          for (const NamedTensor& parameter : ddp.parameters()) clear_grad(parameter.tensor);
          pass();
        },
        AllOf(HasSubstr(on_all ? "DistributedDataParallel: rank " : "DistributedDataParallel: rank 1"),
              HasSubstr("'first.weight' was frozen, and is no longer"), HasSubstr("then wrap it")));
}

TEST_P(OutOfStep, WeightsThatChangeOnOneRankAreNamed) {
  const std::vector<std::function<void(Net&)>> changes = {[](Net& net) {
                                                            Net other;
                                                            for (const auto& [name, tensor] : other.named_parameters()) tensor.fill(0.5F);
                                                            net.load_state_dict(other.state_dict());
                                                          },
                                                          [](Net& net) {
                                                            net.last.weight.copy_from(Tensor::full({2, 3}, 2));
                                                          }};
  for (const auto& change : changes)
    expect_named(
        [&](auto group) {
          Training training(group);
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
        Net net;
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
        Training one(group), other(group);
        one.step();
        other.step();
        if (!one.is_odd()) one.step();
        other.step();
      },
      AllOf(HasSubstr("out of step in the backward pass of step 2"), HasSubstr("wrapper: "), HasSubstr("2 on rank 1")));
}

TEST_P(OutOfStep, RatesAreComparedUnderEveryHook) {
  const std::vector<std::function<CommHook()>> makers = {[] { return hooks::fp16(); }, [] { return hooks::top_k({.ratio = 0.5F}); },
                                                         [] { return hooks::power_sgd({.matrix_rank = 1, .start_step = 1}); },
                                                         // These make no call in backward: the next one compares.
                                                         [] { return hooks::no_op(); },
                                                         [] { return hooks::post_local_sgd({.start_step = 0}); }};
  for (const auto& make : makers)
    expect_named(
        [&](auto group) {
          Training training(group, {.comm_hook = make()});
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
          Training training(group);
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
        Training training(group);
        training.ddp.join([&] {
          if (training.is_odd()) require_grad(training.net.first.bias, false);
          sum(training.ddp(Tensor::full({2, 4}, 1))).backward();
        });
      },
      HasSubstr("3 on rank 1"));
}

// -- what ranks may do
class InStep : public OverRanks {};
INSTANTIATE_TEST_SUITE_P(Ranks, InStep, ::testing::Combine(::testing::Values("threads", "tcp"), ::testing::Values(2, 3)), OverRanks::name);

TEST_P(InStep, RanksMayGatherUnequalNumbersOfBatches) {
  run([](auto group) {
    Training training(group);
    const Numbers set;
    const int window = group->rank() + 1;  // batches of one step
    const data::DistributedSampler sampler(set.size(), group->place(), {.shuffle = false});
    int gathered = 0, steps = 0;
    for (auto& batch : data::DataLoader(set, sampler, {.batch_size = 1})) {
      if (gathered == 0) training.sgd.zero_grad();
      if (++gathered < window) {
        const auto local = training.ddp.no_sync();
        training.loss(batch[0]).backward();
        continue;
      }
      gathered = 0;
      training.loss(batch[0]).backward();
      training.sgd.step();
      if (++steps == 2) break;
    }
    EXPECT_EQ(steps, 2);
    // A batch cut into unequal numbers of parts.
    int batches = 0;
    for (auto& batch : data::DataLoader(set, sampler, {.batch_size = 1})) {
      training.sgd.zero_grad();
      for (int part = 0; part < group->rank(); ++part) {
        const auto local = training.ddp.no_sync();
        training.loss(batch[0]).backward();
      }
      training.loss(batch[0]).backward();
      training.sgd.step();
      if (++batches == 3) break;
    }
  });
}

TEST_P(InStep, RankZeroMayEvaluateAlone) {
  run([](auto group) {
    Training training(group);
    optim::ExponentialMovingAverage averages(training.ddp.parameters());
    const Numbers set;
    const data::DistributedSampler sampler(set.size(), group->place(), {.shuffle = false}),
        whole(set.size(), {0, 1, 0, 1}, {.shuffle = false});
    for (auto& batch : data::DataLoader(set, sampler, {.batch_size = 2})) {
      training.sgd.zero_grad();
      training.loss(batch[0]).backward();
      training.sgd.step();
      averages.update();
      if (group->rank() != 0) continue;
      const NoGrad evaluation;
      const auto swapped = averages.swapped();
      for (auto& samples : data::DataLoader(set, whole, {.batch_size = 7})) training.net(samples[0]);
    }
  });
}

// Two models train each other by turns, one of them twice as often.
TEST_P(InStep, TwoWrappersDoNotCount) {
  run([](auto group) {
    Training one(group), other(group);
    for (int step = 0; step < 3; ++step) {
      one.step();
      other.step();
      for (const NamedTensor& parameter : one.ddp.parameters()) require_grad(parameter.tensor, false);
      other.sgd.zero_grad();
      sum(other.ddp(Tensor::full({2, 4}, 1)) + sum(one.net(Tensor::full({2, 4}, 1)))).backward();
      other.sgd.step();
      for (const NamedTensor& parameter : one.ddp.parameters()) require_grad(parameter.tensor, true);
    }
    check_replicas_equal(*group, one.net.named_parameters(), "weights");
    check_replicas_equal(*group, other.net.named_parameters(), "weights");
  });
}

TEST_P(InStep, JoinMakesCountsUnequalAndTheNextPassIsWell) {
  run([](auto group) {
    Training training(group);
    training.ddp.join([&] {
      for (int step = 0; step <= group->rank(); ++step) training.step();
    });
    training.step();
    check_replicas_equal(*group, training.net.named_parameters(), "weights");
  });
}

// One that survived the rank that was replaced has made steps, and its optimizer is the old one.
TEST_P(InStep, StepsBeforeTheWrapperDoNotCount) {
  run([](auto group) {
    Net net;
    optim::SGD sgd(net.named_parameters(), {.lr = 0.125F});
    for (int step = 0; step < group->rank(); ++step) {
      sgd.zero_grad();
      sum(net(Tensor::full({2, 4}, 1))).backward();
      sgd.step();
    }
    DistributedDataParallel ddp(net, group);
    for (int step = 0; step < 2; ++step) {
      sgd.zero_grad();
      sum(ddp(Tensor::full({2, 4}, 1))).backward();
      sgd.step();
    }
  });
}

TEST_P(InStep, IgnoredParametersAreEachRanksOwn) {
  run([](auto group) {
    Net net;
    DistributedDataParallel ddp(net, group, {.ignored_parameters = {"first.weight", "first.bias"}});
    optim::SGD sgd(ddp.parameters(), {.lr = 0.125F}), own({{"first.weight", net.first.weight}}, {.lr = group->rank() == 0 ? 0.5F : 0.25F});
    for (int step = 0; step < 2; ++step) {
      sgd.zero_grad();
      own.zero_grad();
      net.first.weight.fill(static_cast<float>(group->rank()));
      sum(ddp(Tensor::full({2, 4}, 1))).backward();
      sgd.step();
      if (group->rank() == 0) own.step();
    }
  });
}

}  // namespace
}  // namespace lockstep::testing

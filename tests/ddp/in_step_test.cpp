// Ranks may do these things independently; they must not be mistaken for a skipped step.
#include <gtest/gtest.h>

#include "lockstep/autograd/engine.h"
#include "lockstep/data/loader.h"
#include "lockstep/ddp/ddp.h"
#include "lockstep/optim/ema.h"
#include "lockstep/optim/sgd.h"
#include "tests/ddp/ranks.h"
#include "tests/ddp/training.h"

namespace lockstep::testing {
namespace {

class InStep : public OverRanks {};
INSTANTIATE_TEST_SUITE_P(Ranks, InStep,
                         ::testing::Combine(::testing::Values("threads", "tcp"), ::testing::Values(2, 3)),
                         OverRanks::name);

TEST_P(InStep, RanksMayAccumulateUnequalNumbersOfBatches) {
  run([](auto group) {
    RankTraining training(group);
    const Numbers set;
    const int window = group->rank() + 1;  // number of batches in one step
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
    // A batch is cut into different numbers of parts.
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
    RankTraining training(group);
    optim::ExponentialMovingAverage averages(training.ddp.parameters());
    const Numbers set;
    const data::DistributedSampler sampler(set.size(), group->place(), {.shuffle = false}),
        whole(set.size(), {0, 1, 0, 1}, {.shuffle = false});
    data::DataLoader samples(set, whole, {.batch_size = 7});
    for (auto& batch : data::DataLoader(set, sampler, {.batch_size = 2})) {
      training.sgd.zero_grad();
      training.loss(batch[0]).backward();
      training.sgd.step();
      averages.update();
      if (group->rank() != 0) continue;
      const NoGrad evaluation;
      const auto swapped = averages.swapped();
      for (const bool stops : {false, true})
        for (auto& part : samples) {
          training.net(part[0]);
          if (stops) break;
        }
    }
  });
}

// Two models train alternately, one of them twice as often.
TEST_P(InStep, TwoWrappersDoNotCount) {
  run([](auto group) {
    RankTraining one(group), other(group);
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

TEST_P(InStep, JoinMakesCountsUnequalButTheNextPassSucceeds) {
  run([](auto group) {
    RankTraining training(group);
    training.ddp.join([&] {
      for (int step = 0; step <= group->rank(); ++step) training.step();
    });
    training.step();
    check_replicas_equal(*group, training.net.named_parameters(), "weights");
  });
}

// A rank that survived while another was replaced has made steps, and has its old optimizer.
TEST_P(InStep, StepsBeforeTheWrapperDoNotCount) {
  run([](auto group) {
    TwoLayers net;
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

TEST_P(InStep, IgnoredParametersAreNotShared) {
  run([](auto group) {
    TwoLayers net;
    DistributedDataParallel ddp(net, group, {.ignored_parameters = {"first.weight", "first.bias"}});
    optim::SGD sgd(ddp.parameters(), {.lr = 0.125F}),
        own({{"first.weight", net.first.weight}}, {.lr = group->rank() == 0 ? 0.5F : 0.25F});
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

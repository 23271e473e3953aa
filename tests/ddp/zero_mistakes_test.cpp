// Mistakes in the use of ZeroRedundancyOptimizer: all ranks throw the reason.
#include "lockstep/ddp/zero.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/optim/adam.h"
#include "lockstep/optim/clip.h"
#include "lockstep/reduce/hooks.h"
#include "tests/ddp/ranks.h"
#include "tests/ddp/zero_trainee.h"

namespace lockstep::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

TEST(ZeroMistakes, AreRefusedOnAllRanksWithTheReason) {
  const auto refused = [](const std::function<void(std::shared_ptr<ProcessGroup>)>& body) {
    return run_ranks(2, "threads", body);
  };
  EXPECT_THAT(refused([](auto group) {
                ZeroNet net(12);
                DistributedDataParallel ddp(net, group, {.comm_hook = hooks::no_op()});
                optim::SGD sgd(ddp.parameters());
                const ZeroRedundancyOptimizer zero(ddp, sgd);
              }),
              Each(HasSubstr("the comm_hook no_op leaves each rank its own gradients")));
  EXPECT_THAT(refused([](auto group) {
                ZeroNet net(12);
                DistributedDataParallel ddp(net, group, {.comm_hook = hooks::post_local_sgd()});
                optim::SGD sgd(ddp.parameters());
                const ZeroRedundancyOptimizer zero(ddp, sgd);
              }),
              Each(HasSubstr("post_local_sgd (start_step 100, subgroup none) leaves each rank its own gradients")));
  EXPECT_THAT(refused([](auto group) {
                ZeroNet net(12);
                DistributedDataParallel ddp(net, group);
                std::vector<NamedTensor> some = ddp.parameters();
                if (group->rank() == 1) some.pop_back();
                optim::SGD sgd(some);
                const ZeroRedundancyOptimizer zero(ddp, sgd);
              }),
              Each(HasSubstr("rank 1: parameter 'b.bias' is not in the optimizer SGD")));
  EXPECT_THAT(refused([](auto group) {
                ZeroNet net(12), other(12);
                DistributedDataParallel ddp(net, group);
                optim::SGD sgd(ddp.parameters());
                sgd.add_group({.parameters = {{"other", other.parameters().front()}}});
                const ZeroRedundancyOptimizer zero(ddp, sgd);
              }),
              Each(HasSubstr("the wrapper does not average the optimizer's parameter 'other'")));
  EXPECT_THAT(refused([](auto group) {
                ZeroNet net(12);
                DistributedDataParallel ddp(net, group);
                optim::SGD sgd(ddp.parameters());
                optim::Adam adam(ddp.parameters());
                optim::Optimizer& own = group->rank() == 0 ? static_cast<optim::Optimizer&>(sgd) : adam;
                const ZeroRedundancyOptimizer zero(ddp, own);
              }),
              Each(HasSubstr("have different optimizers: rank 1 has optimizer Adam")));
  EXPECT_THAT(refused([](auto group) {
                ZeroSettings settings;
                settings.scales = group->rank() == 0;
                const ZeroTrainee trainee(group, "sgd", true, 13, settings);
              }),
              Each(HasSubstr("have different optimizers: rank 1 has optimizer SGD with 2 groups, no loss_scaler")));
  EXPECT_THAT(refused([](auto group) {
                ZeroTrainee trainee(group, "sgd", true);
                optim::SGD second(trainee.ddp.parameters());
                const ZeroRedundancyOptimizer zero(trainee.ddp, second);
              }),
              Each(HasSubstr("a wrapper can have one at a time")));
}

TEST(ZeroMistakes, OfStepsThrow) {
  const auto failures = [](const std::function<void(ZeroTrainee&)>& body) {
    return run_ranks(2, "threads", [&](auto group) {
      ZeroTrainee trainee(group, "sgd", true);
      body(trainee);
    });
  };
  EXPECT_THAT(failures([](auto& trainee) {
                trainee.backward(0);
                optim::clip_grad_norm(trainee.ddp.parameters(), 1);
              }),
              Each(HasSubstr("no rank has the complete average. Call zero_grad() first; to clip by the norm, set "
                             "DistributedDataParallelOptions::max_grad_norm")));
  EXPECT_THAT(failures([](auto& trainee) {
                trainee.backward(0);
                optim::clip_grad_value(trainee.ddp.parameters(), 1);
              }),
              Each(HasSubstr("no rank has the complete average")));
  EXPECT_THAT(failures([](auto& trainee) {
                trainee.backward(0);
                trainee.backward(1);
              }),
              Each(HasSubstr("call zero_grad() before each backward")));
  EXPECT_THAT(failures([](auto& trainee) {
                const auto local = trainee.ddp.no_sync();
                trainee.backward(0);
                trainee.optimizer->step();
              }),
              Each(HasSubstr("from a backward under no_sync()")));
  EXPECT_THAT(failures([](auto& trainee) {
                trainee.backward(0);
                trainee.zero.reset();
                trainee.optimizer->step();
              }),
              Each(HasSubstr("this optimizer has only slices of its state")));
  EXPECT_THAT(failures([](auto& trainee) {
                trainee.optimizer->add_group({.parameters = {{"more", ZeroNet(2).parameters().front()}}});
              }),
              Each(HasSubstr("add_group: ZeroRedundancyOptimizer has taken over the optimizer")));
  EXPECT_THAT(failures([](auto& trainee) { trainee.ddp.join([] {}); }),
              Each(HasSubstr("set .after_step to the optimizer's step()")));
}

// One rank skips a step, or clears its gradients before it. The next step's barriers detect it over every wire.
TEST(ZeroMistakes, OfOneRankAreMismatchesOnAll) {
  const auto texts_of = [](const std::string& transport, const std::function<void(ZeroTrainee&, bool is_odd)>& body) {
    return run_ranks(2, transport, [&](auto group) {
      ZeroTrainee trainee(group, "sgd", true);
      trainee.run(2);
      trainee.optimizer->zero_grad();
      trainee.backward(2);
      body(trainee, group->rank() == 1);
      trainee.optimizer->step();
      group->barrier();
    });
  };
  for (const char* const transport : {"threads", "tcp"}) {
    SCOPED_TRACE(transport);
    EXPECT_THAT(texts_of(transport,
                         [](auto& trainee, bool is_odd) {
                           if (is_odd) trainee.optimizer->zero_grad();
                         }),
                Each(HasSubstr("the ranks make different calls")));
    EXPECT_THAT(texts_of(transport,
                         [](auto& trainee, bool is_odd) {
                           if (!is_odd) return;
                           trainee.optimizer->zero_grad();
                           trainee.backward(3);
                         }),
                Each(HasSubstr("the ranks make different calls")));
  }
}

// The others wait for the rank before they change a weight, and receive its error.
TEST(ZeroFaults, ARankThatAbortsBeforeItsStepEndsTheOthers) {
  const auto texts = run_ranks(2, "threads", [](auto group) {
    ZeroTrainee trainee(group, "sgd", true);
    trainee.run(2);
    trainee.optimizer->zero_grad();
    trainee.backward(2);
    if (group->rank() == 1) return group->abort("a bad batch");
    trainee.optimizer->step();
  });
  EXPECT_EQ(texts[1], "");
  EXPECT_THAT(texts[0], HasSubstr("rank 1 aborted the group: a bad batch"));
  EXPECT_THAT(texts[0], HasSubstr("gradients of pass"));
}

}  // namespace
}  // namespace lockstep::testing

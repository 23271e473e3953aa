// step() with gradients that no_sync() left on one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/autograd/engine.h"
#include "lockstep/ddp/ddp.h"
#include "lockstep/ddp/model_averager.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/reduce/hooks.h"
#include "tests/ddp/heads.h"
#include "tests/ddp/ranks.h"
#include "tests/support/message_of.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void local_pass(DistributedDataParallel& ddp) {
  const auto local = ddp.no_sync();
  heads_loss(ddp, power_of_rank(ddp.group())).backward();
}

class LocalGradients : public OverRanks {};
INSTANTIATE_TEST_SUITE_P(Ranks, LocalGradients,
                         ::testing::Combine(::testing::Values("threads"), ::testing::Values(2, 3)), OverRanks::name);

TEST_P(LocalGradients, AStepWithThemIsRefusedBeforeAnyChange) {
  run([](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group);
    optim::AdamW adam(ddp.parameters(), {.lr = 0.5F});
    const std::string before = hash_of(model.named_parameters());
    local_pass(ddp);
    EXPECT_THAT(message_of([&] { adam.step(); }),
                AllOf(HasSubstr("AdamW::step: the gradient of 'trunk' has only this rank's samples"),
                      HasSubstr("no_sync()"), HasSubstr("zero_grad()"), HasSubstr("mark_grad_written(parameter)")));
    EXPECT_EQ(hash_of(model.named_parameters()), before);
    EXPECT_EQ(gradient_of(model.heads[0]), power_of_rank(*group)) << "reading is allowed";
  });
}

// The end of an epoch whose last window is not full, handled in each way that the message suggests.
TEST_P(LocalGradients, AStepIsAllowedOnceTheyAreAveragedDroppedOrDeclared) {
  run([](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group);
    optim::SGD sgd(ddp.parameters(), {.lr = 0.125F});
    local_pass(ddp);
    heads_loss(ddp, power_of_rank(*group)).backward();
    sgd.step();
    sgd.zero_grad();
    local_pass(ddp);
    sgd.zero_grad();
    sgd.step();
    local_pass(ddp);
    for (const auto& [name, tensor] : ddp.parameters()) {
      group->all_reduce(grad(tensor).template span<float>(), ReduceOp::kAvg);
      mark_grad_written(tensor);
    }
    sgd.step();
    check_replicas_equal(*group, model.named_parameters(), "weights");
  });
}

// Gradients that only a local pass computed are averaged with the next reduced pass, which computes others.
TEST_P(LocalGradients, APassThatReachesOtherParametersAveragesThem) {
  run([](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group, {.find_unused_parameters = true});
    optim::SGD sgd(ddp.parameters(), {.lr = 0.125F});
    local_pass(ddp);
    model.use = {0};
    heads_loss(ddp, power_of_rank(*group)).backward();
    sgd.step();
    check_replicas_equal(*group, model.named_parameters(), "weights");
  });
}

TEST_P(LocalGradients, StepsWithThemAreAllowedIfWeightsAreAveraged) {
  run([](auto group) {
    for (const bool by_hook : {true, false}) {
      Heads model;
      DistributedDataParallelOptions options;
      if (by_hook) options.comm_hook = hooks::no_op();
      DistributedDataParallel ddp(model, group, options);
      PeriodicModelAverager averager(ddp, {.period = 2});
      optim::SGD sgd(ddp.parameters(), {.lr = 0.125F});
      for (int step = 0; step < 4; ++step) {
        sgd.zero_grad();
        if (by_hook)
          heads_loss(ddp, power_of_rank(*group)).backward();
        else
          local_pass(ddp);
        sgd.step();
        averager.average_parameters();
      }
      check_replicas_equal(*group, model.named_parameters(), "weights");
      // Gradients are averaged, yet weights differ between two averages.
      if (!by_hook) {
        sgd.zero_grad();
        local_pass(ddp);
        sgd.step();
        heads_loss(ddp, power_of_rank(*group)).backward();
      }
    }
  });
}

TEST_P(LocalGradients, IgnoredParametersMayUseThem) {
  run([](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group, {.ignored_parameters = {"trunk"}});
    optim::SGD own({{"trunk", model.trunk}}, {.lr = 0.125F});
    local_pass(ddp);
    own.step();
  });
}

TEST(LocalGradientsOfOne, AreTheAverage) {
  Heads model;
  DistributedDataParallel ddp(model, ProcessGroup::wrap({}, make_backend("local", {})));
  optim::SGD sgd(ddp.parameters(), {.lr = 0.125F});
  local_pass(ddp);
  sgd.step();
}

}  // namespace
}  // namespace lockstep::testing

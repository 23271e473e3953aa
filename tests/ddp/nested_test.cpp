// Several wrapped modules: one inside another, two in one loss, and frozen parameters among them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/optim/sgd.h"
#include "tests/ddp/heads.h"
#include "tests/ddp/ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

float own_value(const ProcessGroup& group) { return group.rank() == 0 ? 1.F : 3.F; }

class Nested : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Wire, Nested, ::testing::Values("threads", "shm", "tcp"),
                         [](const auto& test) { return std::string(test.param); });

// Calls a wrapped model and then applies its own weight. The inner model's parameters may also be registered here.
struct Outer : nn::Module {
  DistributedDataParallel& inner;
  Tensor last = Tensor::full({1, 1}, 1);
  Outer(DistributedDataParallel& inner, bool adds) : inner(inner) {
    if (adds) add("inner", inner.module());
    add_parameter("last", last);
  }
  Tensor forward(const Tensor& x) override { return linear(inner(x), last, Tensor()); }
};

TEST_P(Nested, AWrappedModelInAnotherIsReducedByItsOwnWrapper) {
  for (const bool adds : {false, true})
    expect_all_well(run_ranks(2, GetParam(), [adds](auto group) {
      Heads model;
      DistributedDataParallel inner(model, group, {.find_unused_parameters = true});
      Outer outer(inner, adds);
      DistributedDataParallelOptions options;
      if (adds) options.ignored_parameters = {"inner.trunk", "inner.head0", "inner.head1", "inner.head2"};
      DistributedDataParallel ddp(outer, group, options);
      EXPECT_EQ(ddp.parameters().size(), 1U);
      model.use = {0, 1};
      for (int step = 0; step < 2; ++step) {
        clear_gradients(inner);
        clear_gradients(ddp);
        heads_loss(ddp, own_value(*group)).backward();
        EXPECT_EQ(gradient_of(outer.last), 2 * 2) << "two heads of weight 1";
        EXPECT_EQ(gradient_of(model.trunk), 2 * 2);
        EXPECT_EQ(gradient_of(model.heads[0]), 2);
        EXPECT_FALSE(has_grad(model.heads[2]));
      }
    }));
}

TEST_P(Nested, ParametersOfBothAreRefusedOnAllRanks) {
  const auto failures = run_ranks(2, GetParam(), [](auto group) {
    Heads model;
    DistributedDataParallel inner(model, group);
    Outer outer(inner, true);
    DistributedDataParallel ddp(outer, group);
  });
  EXPECT_THAT(failures, Each(HasSubstr("rank 0: parameter 'inner.trunk' belongs to another DistributedDataParallel")));
}

TEST_P(Nested, TwoInOneLossAreEachReduced) {
  expect_all_well(run_ranks(4, GetParam(), [](auto group) {
    Heads first, second(5);
    DistributedDataParallel one(first, group), other(second, group);
    const auto mine = static_cast<float>(group->rank());
    const Tensor both = heads_loss(one, mine) + heads_loss(other, 2 * mine);
    both.backward();
    EXPECT_EQ(gradient_of(first.heads[1]), 1.5F);
    EXPECT_EQ(gradient_of(second.heads[4]), 3);
  }));
}

TEST_P(Nested, SeveralForwardsBeforeOneBackwardAddUp) {
  expect_all_well(run_ranks(4, GetParam(), [](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group);
    const auto mine = static_cast<float>(group->rank());
    const std::vector<std::vector<std::size_t>> uses = {{0}, {1}, {2, 0}};  // together they use all
    Tensor sum;
    for (const auto& use : uses) {
      model.use = use;
      const Tensor loss = heads_loss(ddp, mine);
      sum = sum.defined() ? sum + loss : loss;
    }
    sum.backward();
    EXPECT_EQ(gradient_of(model.trunk), 4 * 1.5F);
    EXPECT_EQ(gradient_of(model.heads[0]), 2 * 1.5F);
    EXPECT_EQ(gradient_of(model.heads[1]), 1.5F);
  }));
}

TEST_P(Nested, FrozenParametersAreBroadcastAndStay) {
  expect_all_well(run_ranks(2, GetParam(), [](auto group) {
    Heads model;
    model.heads[1].fill(own_value(*group));
    require_grad(model.heads[1], false);
    DistributedDataParallel ddp(model, group);
    optim::SGD sgd(ddp.parameters(), {.lr = 1});
    heads_loss(ddp, own_value(*group)).backward();
    EXPECT_EQ(gradient_of(model.trunk), 3 * 2);
    sgd.step();
    EXPECT_EQ(model.heads[1].item(), 1) << "rank 0's";
    check_replicas_equal(*group, model.named_parameters(), "weights");
  }));
}

}  // namespace
}  // namespace lockstep::testing

// Parameters that a pass leaves without a gradient: refused on all ranks, detected in each pass, or fixed by the first
// one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/optim/sgd.h"
#include "tests/ddp/heads.h"
#include "tests/ddp/ranks.h"
#include "tests/support/message_of.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

class UnusedParameters : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Wire, UnusedParameters, ::testing::Values("threads", "shm", "tcp"),
                         [](const auto& test) { return std::string(test.param); });

// Throws the error of a rank that failed, from the pass itself or from the next call.
void pass_and_meet(DistributedDataParallel& ddp) {
  heads_loss(ddp, 1).backward();
  ddp.group().barrier();
}

TEST_P(UnusedParameters, AreAnErrorOnAllRanksThatNamesThem) {
  for (const int ranks : {2, 4}) {
    const auto failures = run_ranks(ranks, GetParam(), [](auto group) {
      Heads model;
      DistributedDataParallel ddp(model, group);
      pass_and_meet(ddp);
      clear_gradients(ddp);
      if (group->rank() == 1) model.use = {0};
      if (group->rank() != 1) return pass_and_meet(ddp);
      EXPECT_THROW(pass_and_meet(ddp), InvalidArgument) << "on the failing rank";
      throw Error("rank 1, step 2: backward did not reach 2 of 4 parameters: 'head1', 'head2'. Use them in forward()");
    });
    EXPECT_THAT(
        failures,
        Each(AllOf(HasSubstr("rank 1, step 2: backward did not reach 2 of 4 parameters: 'head1', 'head2'. Use them"),
                   Not(HasSubstr("'head0'")))))
        << ranks << " ranks";
    EXPECT_THAT(failures[0], AllOf(HasSubstr("rank 1 aborted the group"), HasSubstr("find_unused_parameters")));
  }
}

TEST_P(UnusedParameters, OfAllRanksAreAnErrorToo) {
  const auto failures = run_ranks(4, GetParam(), [](auto group) {
    Heads model;
    model.use = {2, 0};
    DistributedDataParallel ddp(model, group);
    pass_and_meet(ddp);
  });
  EXPECT_THAT(failures, Each(HasSubstr("step 1: backward did not reach 1 of 4 parameters: 'head1'. ")));
}

TEST(UnusedParametersAlone, EndTheStepButNotTheWrapper) {
  Heads model;
  model.use = {0, 1};
  DistributedDataParallel ddp(model, ProcessGroup::wrap({}, make_backend("local", {})));
  EXPECT_THAT(message_of([&] { heads_loss(ddp, 1).backward(); }),
              HasSubstr("rank 0, step 1: backward did not reach 1 of 4"));
  model.use = {0, 1, 2};
  clear_gradients(ddp);
  heads_loss(ddp, 3).backward();
  EXPECT_EQ(gradient_of(model.heads[2]), 3);
}

TEST(UnusedParametersAlone, TheFirstOfALongListAreNamed) {
  Heads model(40);
  model.use = {39};
  DistributedDataParallel ddp(model, ProcessGroup::wrap({}, make_backend("local", {})));
  EXPECT_THAT(message_of([&] { heads_loss(ddp, 1).backward(); }),
              AllOf(HasSubstr("39 of 41"), HasSubstr("'head19' and 19 more"), Not(HasSubstr("'head20'"))));
}

// More parameters than one element has bits.
TEST_P(UnusedParameters, AreFoundAndThoseThatNoRankUsesKeepNoGradient) {
  for (const int ranks : {2, 4})
    expect_all_well(run_ranks(ranks, GetParam(), [&](auto group) {
      Heads model(21);
      DistributedDataParallel ddp(model, group, {.find_unused_parameters = true});
      optim::SGD sgd(ddp.parameters(), {.lr = 1, .weight_decay = 0.5F});
      const auto rank = static_cast<std::size_t>(group->rank());
      for (const std::size_t shared : {std::size_t{20}, std::size_t{19}}) {  // different ones in each step
        model.use = {rank, shared};
        sgd.zero_grad();
        heads_loss(ddp, static_cast<float>(ranks)).backward();
        for (std::size_t h = 0; h < 21; ++h)
          EXPECT_EQ(has_grad(model.heads[h]), h < static_cast<std::size_t>(ranks) || h == shared) << h;
        EXPECT_EQ(gradient_of(model.heads[0]), grad(model.trunk).item() / 2 / static_cast<float>(ranks))
            << "one rank's gradient over the number of all";
      }
      sgd.step();
      EXPECT_EQ(model.heads[18].item(), 1) << "no gradient, no weight decay";
      EXPECT_NE(model.heads[19].item(), 1);
      check_replicas_equal(*group, model.named_parameters(), "weights");
    }));
}

TEST_P(UnusedParameters, APassThatUsesNoneTakesPart) {
  expect_all_well(run_ranks(2, GetParam(), [](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group, {.find_unused_parameters = true});
    if (group->rank() == 1) model.use = {};
    heads_loss(ddp, 4, true).backward();
    EXPECT_EQ(gradient_of(model.heads[1]), 2);
    model.use = {};
    clear_gradients(ddp);
    heads_loss(ddp, 4, true).backward();
    for (const Tensor& weight : model.parameters()) EXPECT_FALSE(has_grad(weight));
  }));
}

TEST_P(UnusedParameters, OfAStaticGraphAreFixedByTheFirstStep) {
  expect_all_well(run_ranks(2, GetParam(), [](auto group) {
    Heads model;
    model.use = {static_cast<std::size_t>(group->rank())};  // no rank uses head2
    DistributedDataParallel ddp(model, group, {.static_graph = true});
    for (int step = 0; step < 3; ++step) {
      clear_gradients(ddp);
      const auto calls = group->backend().counters().shared_memory_bytes + group->backend().counters().tcp_bytes;
      heads_loss(ddp, 4).backward();
      EXPECT_EQ(gradient_of(model.heads[0]), 2);
      EXPECT_EQ(gradient_of(model.heads[1]), 2);
      EXPECT_FALSE(has_grad(model.heads[2]));
      EXPECT_GT(group->backend().counters().shared_memory_bytes + group->backend().counters().tcp_bytes, calls);
    }
  }));
}

TEST_P(UnusedParameters, AStaticGraphThatChangesIsAnErrorOnAllRanks) {
  for (const bool more : {false, true}) {
    const auto failures = run_ranks(2, GetParam(), [more](auto group) {
      Heads model;
      model.use = {0, 1};
      DistributedDataParallel ddp(model, group, {.static_graph = true});
      pass_and_meet(ddp);
      clear_gradients(ddp);
      if (group->rank() == 0) model.use = more ? std::vector<std::size_t>{0, 1, 2} : std::vector<std::size_t>{1};
      pass_and_meet(ddp);
    });
    const char* difference = more ? "rank 0, step 2: backward reached 'head2', unlike in step 1"
                                  : "rank 0, step 2: backward did not reach 'head0', unlike in step 1";
    EXPECT_THAT(failures, Each(AllOf(HasSubstr(difference), HasSubstr("find_unused_parameters"))));
  }
}

TEST_P(UnusedParameters, AWeightUsedTwiceIsUsed) {
  for (const DistributedDataParallelOptions& options :
       {DistributedDataParallelOptions{}, {.find_unused_parameters = true}, {.static_graph = true}})
    expect_all_well(run_ranks(2, GetParam(), [&options](auto group) {
      Heads model;
      model.use = {0, 1, 1, 2};
      DistributedDataParallel ddp(model, group, options);
      for (int step = 0; step < 2; ++step) {
        clear_gradients(ddp);
        heads_loss(ddp, group->rank() == 0 ? 1.F : 3.F).backward();
        EXPECT_EQ(gradient_of(model.heads[1]), 2 * 2);
        EXPECT_EQ(gradient_of(model.trunk), 4 * 2);
      }
    }));
}

}  // namespace
}  // namespace lockstep::testing

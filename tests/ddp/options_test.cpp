// The options of DistributedDataParallel: buckets, ignored and delayed parameters. Invalid or differing options are
// errors on all ranks, and so is a module that changes after it was wrapped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "lockstep/core/error.h"
#include "tests/ddp/heads.h"
#include "tests/ddp/ranks.h"
#include "tests/support/in_mib.h"
#include "tests/support/message_of.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

using Options = DistributedDataParallelOptions;

std::shared_ptr<ProcessGroup> alone() { return ProcessGroup::wrap({}, make_backend("local", {})); }

class Wires : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Wire, Wires, ::testing::Values("threads", "shm", "tcp"),
                         [](const auto& test) { return std::string(test.param); });

TEST(Options, BucketsFollowTheListOfCaps) {
  Heads model;
  EXPECT_EQ(buckets_of(DistributedDataParallel(model, alone())), (Buckets{{"head2", "head1", "head0", "trunk"}}));
  const Options each{.bucket_cap_mb = {in_mib(1)}}, second{.bucket_cap_mb = {in_mib(64), in_mib(128)}};
  EXPECT_EQ(buckets_of(DistributedDataParallel(model, alone(), each)),
            (Buckets{{"head2"}, {"head1"}, {"head0"}, {"trunk"}}));
  EXPECT_EQ(buckets_of(DistributedDataParallel(model, alone(), second)),
            (Buckets{{"head2"}, {"head1", "head0"}, {"trunk"}}));
}

TEST_P(Wires, DelayedParametersAreReducedLast) {
  expect_all_well(run_ranks(2, GetParam(), [](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group, {.delayed_parameters = {"head2", "head0"}});
    EXPECT_EQ(buckets_of(ddp), (Buckets{{"head1", "trunk"}, {"head2", "head0"}}));
    heads_loss(ddp, group->rank() == 0 ? 1.F : 3.F).backward();
    for (const Tensor& head : model.heads) EXPECT_EQ(gradient_of(head), 2);
  }));
}

TEST_P(Wires, IgnoredParametersAndBuffersAreNotShared) {
  struct WithBuffers : Heads {
    Tensor shared = Tensor::zeros({1}), own;
    explicit WithBuffers(int rank)
        : own(Tensor::full({rank + 1}, static_cast<float>(rank))) {  // a different shape on each rank
      add_buffer("shared", shared);
      add_buffer("own", own);
      add_parameter("alias", heads[1]);
    }
  };
  expect_all_well(run_ranks(2, GetParam(), [](auto group) {
    const auto mine = static_cast<float>(group->rank() + 1);
    WithBuffers model(group->rank());
    model.shared.fill(mine);
    model.heads[0].fill(mine);
    model.heads[1].fill(mine);
    DistributedDataParallel ddp(model, group, {.ignored_parameters = {"head0", "alias", "own"}});
    EXPECT_EQ(ddp.parameters().size(), 2U) << "trunk and head2";
    EXPECT_EQ(buckets_of(ddp), (Buckets{{"head2", "trunk"}}));
    const Tensor loss = heads_loss(ddp, 4 * mine);
    EXPECT_EQ(model.shared.item(), 1) << "rank 0's";
    EXPECT_EQ(model.own.template span<float>()[0], mine - 1);
    EXPECT_EQ(model.heads[0].item(), mine);
    EXPECT_EQ(model.heads[1].item(), mine) << "the same tensor by another name";
    loss.backward();
    EXPECT_EQ(gradient_of(model.heads[2]), 6);
    EXPECT_EQ(gradient_of(model.heads[0]), 4 * mine);
    EXPECT_EQ(gradient_of(model.heads[1]), 4 * mine);
  }));
}

TEST_P(Wires, BuffersAreUnchangedWithoutSync) {
  struct WithBuffer : Heads {
    Tensor seen = Tensor::zeros({1});
    WithBuffer() { add_buffer("seen", seen); }
  };
  for (const bool sync : {true, false})
    expect_all_well(run_ranks(2, GetParam(), [sync](auto group) {
      WithBuffer model;
      DistributedDataParallel ddp(model, group, {.forward_sync_buffers = sync});
      model.seen.fill(static_cast<float>(group->rank()));
      heads_loss(ddp, 1).backward();
      EXPECT_EQ(model.seen.item(), sync ? 0 : static_cast<float>(group->rank()));
    }));
}

TEST(Options, InvalidOptionsAreRefusedWithTheReason) {
  Heads model;
  require_grad(model.heads[2], false);
  const auto refusal = [&](const Options& options) {
    return message_of([&] { DistributedDataParallel(model, alone(), options); });
  };
  EXPECT_THAT(refusal({.bucket_cap_mb = {}}), HasSubstr("bucket_cap_mb is empty"));
  for (const double cap : {0.0, -1.0, 1e9, std::nan(""), std::numeric_limits<double>::infinity()})
    EXPECT_THAT(refusal({.bucket_cap_mb = {1, cap}}), HasSubstr("expected MiB above 0")) << cap;
  EXPECT_THAT(refusal({.find_unused_parameters = true, .static_graph = true}), HasSubstr("set only one of them"));
  for (const float norm : {-1.0F, std::nanf("")})
    EXPECT_THAT(refusal({.max_grad_norm = norm}), HasSubstr("expected a norm above 0, or 0 for no clipping")) << norm;
  optim::LossScaler scaler;
  EXPECT_THAT(refusal({.loss_scaler = &scaler}),
              HasSubstr("loss_scaler is used only by max_grad_norm and on_nonfinite_gradient"));
  EXPECT_THAT(refusal({.on_nonfinite_gradient = OnNonfiniteGradient::kThrow, .loss_scaler = &scaler}),
              HasSubstr("use kSkipStep"));
  EXPECT_THAT(refusal({.ignored_parameters = {"had0"}}), HasSubstr("has 'had0', which is not a parameter or buffer"));
  EXPECT_THAT(refusal({.delayed_parameters = {"had0"}}),
              HasSubstr("has 'had0', which is not a parameter that requires"));
  EXPECT_THAT(refusal({.delayed_parameters = {"head2"}}),
              HasSubstr("has 'head2', which is not a parameter that requires"));
  EXPECT_THAT(refusal({.ignored_parameters = {"head0"}, .delayed_parameters = {"head0"}}),
              HasSubstr("ignored parameters are not reduced"));
  EXPECT_THAT(refusal({.ignored_parameters = {"head0", "head1", "trunk"}}), HasSubstr("none are left to reduce"));
  DistributedDataParallel ddp(model, alone());  // after an error the parameters can be wrapped again
}

TEST_P(Wires, OptionsOfOneRankAreRefusedOnAll) {
  const auto failures = run_ranks(4, GetParam(), [](auto group) {
    Heads model;
    Options options;
    if (group->rank() == 2) options.bucket_cap_mb = {0};
    DistributedDataParallel ddp(model, group, options);
  });
  EXPECT_THAT(failures, Each(HasSubstr("DistributedDataParallel: rank 2: bucket_cap_mb has 0")));
}

TEST_P(Wires, OptionsThatDifferAreAnErrorOnAllRanks) {
  const std::vector<std::pair<Options, const char*>> cases = {
      {{.bucket_cap_mb = {2, 25}}, "rank 1 has bucket_cap_mb {2, 25} at position 0, rank 0 has bucket_cap_mb {1, 25}"},
      {{.forward_sync_buffers = false}, "rank 1 has forward_sync_buffers false"},
      {{.find_unused_parameters = true}, "rank 1 has find_unused_parameters true"},
      {{.static_graph = true}, "rank 1 has static_graph true"},
      {{.ignored_parameters = {"head0"}}, "rank 1 has ignored_parameters {head0}"},
      {{.delayed_parameters = {"head0"}}, "rank 1 has delayed_parameters {head0}"},
      {{.comm_hook = [](ProcessGroup&, const GradBucket&) { return Work(); }}, "rank 1 has a comm_hook"},
      {{.max_grad_norm = 2}, "rank 1 has max_grad_norm 2"},
      {{.on_nonfinite_gradient = OnNonfiniteGradient::kThrow}, "rank 1 has on_nonfinite_gradient kThrow"}};
  for (const auto& [options, message] : cases) {
    const Options& others = options;
    const auto failures = run_ranks(2, GetParam(), [&others](auto group) {
      Heads model;
      DistributedDataParallel ddp(model, group, group->rank() == 1 ? others : Options{});
    });
    EXPECT_THAT(failures, Each(AllOf(HasSubstr("the ranks have different options"), HasSubstr(message))));
  }
}

TEST_P(Wires, AModuleThatChangesAfterWrappingIsAnErrorOnAllRanks) {
  struct Growing : Heads {
    Tensor late = Tensor::full({1, 1}, 1);
    void grow() { add_parameter("late", late); }
  };
  const auto failures = run_ranks(2, GetParam(), [](auto group) {
    Growing model;
    DistributedDataParallel ddp(model, group);
    if (group->rank() == 1) model.grow();
    heads_loss(ddp, 1).backward();
  });
  EXPECT_THAT(failures, Each(HasSubstr("rank 1: the module changed after it was wrapped: 'late' was added")));
}

TEST(Options, FindUnusedParametersCannotBeCaptured) {
  Heads model;
  DistributedDataParallel ddp(model, alone(), {.find_unused_parameters = true});
  EXPECT_THAT(message_of([&] { ddp.capture([&] { return heads_loss(ddp, 1); }); }),
              HasSubstr("set .static_graph = true"));
}

TEST(Options, NonfiniteChecksCannotBeCaptured) {
  Heads model;
  DistributedDataParallel ddp(model, alone(), {.on_nonfinite_gradient = OnNonfiniteGradient::kSkipStep});
  EXPECT_THAT(message_of([&] { ddp.capture([&] { return heads_loss(ddp, 1); }); }), HasSubstr("leave it at kIgnore"));
}

TEST(Options, AParameterHasOneWrapperAtATime) {
  Heads model;
  auto ddp = std::make_unique<DistributedDataParallel>(model, alone());
  EXPECT_THAT(message_of([&] { DistributedDataParallel(model, alone()); }),
              HasSubstr("parameter 'trunk' belongs to another DistributedDataParallel"));
  ddp.reset();
  DistributedDataParallel again(model, alone());
  heads_loss(again, 3).backward();
  EXPECT_EQ(gradient_of(model.heads[0]), 3);
}

}  // namespace
}  // namespace lockstep::testing

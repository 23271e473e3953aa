// Buckets are planned again after the first pass, in the order of rank 0's gradients: on all ranks, with their values,
// under the handles that users hold, and not if the order may change.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/train/checkpoint.h"
#include "tests/ddp/heads.h"
#include "tests/ddp/ranks.h"
#include "tests/support/in_mib.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary.h"

namespace lockstep::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Options = DistributedDataParallelOptions;

const std::vector<double> kPairs{in_mib(128)};  // two gradients per bucket
const Buckets kPlanned{{"head2", "head1"}, {"head0", "trunk"}}, kAsTheyCame{{"head1", "head0"}, {"head2", "trunk"}};

// Rank 0's gradients become ready as head1, head0, head2, trunk, the others' as planned.
struct Turned : Heads {
  explicit Turned(int rank) {
    if (rank == 0) use = {2, 0, 1};
  }
};

void expect_averages(const Heads& model, float average) {
  for (const Tensor& head : model.heads) EXPECT_EQ(gradient_of(head), average);
  EXPECT_EQ(gradient_of(model.trunk), 3 * average);
}
void expect_in_slots(const DistributedDataParallel& ddp) {
  const auto parameters = ddp.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i)
    EXPECT_EQ(grad(parameters[i].tensor).buffer().data(), ddp.reducer().slot(i).data()) << parameters[i].name;
}

class RebuiltBuckets : public OverRanks {};
INSTANTIATE_TEST_SUITE_P(Wire, RebuiltBuckets,
                         ::testing::Combine(::testing::Values("threads", "shm", "tcp"), ::testing::Values(1, 2, 4)),
                         OverRanks::name);

TEST_P(RebuiltBuckets, FollowRankZerosOrderAfterTheFirstPass) {
  run([](auto group) {
    Turned model(group->rank());
    DistributedDataParallel ddp(model, group, {.bucket_cap_mb = kPairs});
    EXPECT_EQ(buckets_of(ddp), kPlanned);
    EXPECT_TRUE(ddp.rebuilds_buckets());
    for (int step = 0; step < 3; ++step) {
      clear_gradients(ddp);
      heads_loss(ddp, power_of_rank(*group)).backward();
      EXPECT_EQ(buckets_of(ddp), kAsTheyCame) << step;
      EXPECT_EQ(ddp.reducer().last_pass().size(), 2U);
      expect_averages(model, average_of_powers(group->world_size()));
      expect_in_slots(ddp);
    }
    EXPECT_TRUE(ddp.has_rebuilt_buckets() && !ddp.rebuilds_buckets());
  });
}

TEST_P(RebuiltBuckets, UsersHandlesSeeTheGradients) {
  run([](auto group) {
    Turned model(group->rank());
    DistributedDataParallel ddp(model, group, {.bucket_cap_mb = kPairs});
    const Tensor held = grad(model.trunk), of_head = grad(model.heads[1]);
    const void* const before = held.buffer().data();
    heads_loss(ddp, power_of_rank(*group)).backward();
    const float average = average_of_powers(group->world_size());
    EXPECT_NE(static_cast<const void*>(held.buffer().data()), before) << "nothing moved";
    EXPECT_EQ(held.item(), 3 * average);
    EXPECT_EQ(of_head.item(), average);
    heads_loss(ddp, power_of_rank(*group)).backward();  // accumulates
    EXPECT_EQ(held.item(), 6 * average);
    EXPECT_TRUE(held.is_same(grad(model.trunk)));
  });
}

TEST_P(RebuiltBuckets, OnlyAPassThatIsReducedCounts) {
  run([](auto group) {
    Heads model;  // as planned, then in rank 0's order
    DistributedDataParallel ddp(model, group, {.bucket_cap_mb = kPairs});
    {
      const auto local = ddp.no_sync();
      heads_loss(ddp, power_of_rank(*group)).backward();
    }
    EXPECT_FALSE(ddp.has_rebuilt_buckets());
    if (group->rank() == 0) model.use = {2, 0, 1};
    heads_loss(ddp, power_of_rank(*group)).backward();
    EXPECT_EQ(buckets_of(ddp), kAsTheyCame);
    expect_averages(model, 2 * average_of_powers(group->world_size()));
  });
}

TEST_P(RebuiltBuckets, DelayedParametersStayLastAndAnOrderAsPlannedMovesNothing) {
  run([](auto group) {
    Turned turned(group->rank());
    DistributedDataParallel delayed(turned, group, {.bucket_cap_mb = kPairs, .delayed_parameters = {"head1"}});
    heads_loss(delayed, power_of_rank(*group)).backward();
    EXPECT_EQ(buckets_of(delayed), (Buckets{{"head0", "head2"}, {"trunk"}, {"head1"}}));
    expect_averages(turned, average_of_powers(group->world_size()));
    Heads model;
    DistributedDataParallel ddp(model, group, {.bucket_cap_mb = kPairs});
    const void* const before = grad(model.trunk).buffer().data();
    heads_loss(ddp, 1).backward();
    EXPECT_EQ(static_cast<const void*>(grad(model.trunk).buffer().data()), before);
    EXPECT_TRUE(ddp.has_rebuilt_buckets());
  });
}

TEST_P(RebuiltBuckets, NotIfTheOrderMayChangeBetweenPasses) {
  run([](auto group) {
    Turned model(group->rank());
    for (const bool is_static : {false, true}) {
      DistributedDataParallel ddp(
          model, group, {.bucket_cap_mb = kPairs, .find_unused_parameters = !is_static, .static_graph = is_static});
      clear_gradients(ddp);
      heads_loss(ddp, power_of_rank(*group)).backward();
      EXPECT_EQ(ddp.has_rebuilt_buckets(), is_static);
      EXPECT_EQ(buckets_of(ddp), is_static ? kAsTheyCame : kPlanned);
    }
  });
}

TEST_P(RebuiltBuckets, UnusedParametersOfAStaticGraphComeLast) {
  run([](auto group) {
    Heads model;
    model.use = {2, 1};
    DistributedDataParallel ddp(model, group, {.bucket_cap_mb = kPairs, .static_graph = true});
    for (int step = 0; step < 2; ++step) {
      clear_gradients(ddp);
      heads_loss(ddp, power_of_rank(*group)).backward();
      EXPECT_EQ(buckets_of(ddp), (Buckets{{"head1", "head2"}, {"trunk", "head0"}}));
      EXPECT_FALSE(has_grad(model.heads[0]));
      EXPECT_EQ(gradient_of(model.heads[1]), average_of_powers(group->world_size()));
    }
  });
}

TEST_P(RebuiltBuckets, AFrozenParametersGradientMovesToo) {
  run([](auto group) {
    Turned model(group->rank());
    DistributedDataParallel ddp(model, group, {.bucket_cap_mb = kPairs});
    require_grad(model.heads[0], false);
    for (int step = 0; step < 2; ++step) {
      for (const std::size_t h : {1, 2}) clear_grad(model.heads[h]);
      heads_loss(ddp, power_of_rank(*group)).backward();
      EXPECT_EQ(gradient_of(model.heads[1]), average_of_powers(group->world_size()));
    }
    require_grad(model.heads[0]);
    clear_gradients(ddp);
    heads_loss(ddp, power_of_rank(*group)).backward();
    expect_averages(model, average_of_powers(group->world_size()));
  });
}

TEST_P(RebuiltBuckets, AfterAFailedFirstPassTheNextOneCounts) {
  run([](auto group) {
    Turned model(group->rank());
    DistributedDataParallel ddp(model, group,
                                {.bucket_cap_mb = kPairs, .on_nonfinite_gradient = OnNonfiniteGradient::kThrow});
    const Tensor loss = heads_loss(ddp, INFINITY);
    EXPECT_THAT(message_of([&] { loss.backward(); }), HasSubstr("step 1: gradients are infinite or NaN"));
    EXPECT_FALSE(ddp.has_rebuilt_buckets());
    heads_loss(ddp, power_of_rank(*group)).backward();
    EXPECT_EQ(buckets_of(ddp), kAsTheyCame);
    expect_averages(model, average_of_powers(group->world_size()));
  });
}

TEST_P(RebuiltBuckets, WithoutDataOnRankZeroAnotherRanksOrderIsUsed) {
  if (ranks() == 1) return;
  run([](auto group) {
    Heads model;
    if (group->rank() == 1) model.use = {2, 0, 1};
    DistributedDataParallel ddp(model, group, {.bucket_cap_mb = kPairs});
    ddp.join([&] {
      for (int step = 0; step < group->rank(); ++step) {
        clear_gradients(ddp);
        heads_loss(ddp, 4).backward();
      }
    });
    EXPECT_EQ(buckets_of(ddp), kAsTheyCame);
  });
}

TEST_P(RebuiltBuckets, AGivenOrderAppliesFromTheFirstPass) {
  run([](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group, {.bucket_cap_mb = kPairs});
    EXPECT_THAT(message_of([&] {
                  ddp.rebuild_buckets({"trunk", "head7"});
                }),
                HasSubstr("'head7' is not one of the 4 reduced parameters"));
    EXPECT_THAT(message_of([&] {
                  ddp.rebuild_buckets({"trunk", "trunk"});
                }),
                HasSubstr("got an order of 2 gradients; it must have each of the 4 gradients once"));
    EXPECT_EQ(buckets_of(ddp), kPlanned);
    ddp.rebuild_buckets({"head1", "head0", "head2", "trunk"});
    EXPECT_EQ(buckets_of(ddp), kAsTheyCame);
    heads_loss(ddp, power_of_rank(*group)).backward();
    EXPECT_EQ(buckets_of(ddp), kAsTheyCame);
    expect_averages(model, average_of_powers(group->world_size()));
    expect_in_slots(ddp);
  });
}

// The result depends on a gradient's position in its bucket, as sums between machines do.
Work by_place(ProcessGroup& group, const GradBucket& bucket) {
  auto* values = static_cast<float*>(bucket.buffer);
  for (std::size_t i = 0; i < bucket.count; ++i) values[i] *= static_cast<float>(1 + (bucket.index * 16 + i) % 7);
  return group.all_reduce_async(values, bucket.count, bucket.dtype, ReduceOp::kAvg);
}

// Runs steps `from` to 4 of a training that saves after two, and returns the final weights.
std::string train(const std::shared_ptr<ProcessGroup>& group, const std::string& folder, bool resumes,
                  bool with_buckets) {
  Turned model(group->rank());
  DistributedDataParallel ddp(model, group, {.bucket_cap_mb = kPairs, .comm_hook = by_place});
  optim::SGD sgd(ddp.parameters(), {.lr = 0.125F, .momentum = 0.5F});
  train::CheckpointParts parts{.model = model, .optimizer = sgd, .step = 2, .group = group};
  if (with_buckets) parts.ddp = ddp;
  int step = 0;
  if (resumes) {
    step = static_cast<int>(train::resume_checkpoint(folder, parts).step);
    EXPECT_EQ(ddp.has_rebuilt_buckets(), with_buckets);
  }
  for (; step < 4; ++step) {
    sgd.zero_grad();
    heads_loss(ddp, power_of_rank(*group) / 8).backward();
    sgd.step();
    if (step == 1 && !resumes) train::save_checkpoint(folder, parts);
  }
  check_replicas_equal(*group, model.named_parameters(), "weights");
  group->barrier();
  return hash_of(model.named_parameters());
}

TEST_P(RebuiltBuckets, ACheckpointKeepsThemSoThatAResumedRunHasTheSameBits) {
  const std::string folder = temporary("rebuilt-buckets");
  run([&](auto group) {
    const std::string whole = train(group, folder, false, true);
    EXPECT_EQ(train(group, folder, true, true), whole);
    EXPECT_NE(train(group, folder, true, false), whole) << "the hook does not depend on the layout";
  });
}

TEST_P(RebuiltBuckets, ACheckpointFromBeforeTheFirstPassLeavesThePlanAsItIs) {
  const std::string folder = temporary("planned-buckets");
  run([&](auto group) {
    Turned model(group->rank());
    DistributedDataParallel ddp(model, group, {.bucket_cap_mb = kPairs});
    train::save_checkpoint(folder, {.model = model, .ddp = ddp, .group = group});
    group->barrier();
    train::resume_checkpoint(folder, {.model = model, .ddp = ddp, .group = group});
    EXPECT_FALSE(ddp.has_rebuilt_buckets());
    heads_loss(ddp, power_of_rank(*group)).backward();
    EXPECT_EQ(buckets_of(ddp), kAsTheyCame);
    train::save_checkpoint(folder, {.model = model, .ddp = ddp, .step = 1, .group = group});
    DistributedDataParallelOptions never{.bucket_cap_mb = kPairs, .find_unused_parameters = true};
    Turned other(group->rank());
    DistributedDataParallel finding(other, group, never);
    train::resume_checkpoint(folder, {.model = other, .ddp = finding, .group = group});
    EXPECT_EQ(buckets_of(finding), kPlanned);
  });
}

}  // namespace
}  // namespace lockstep::testing

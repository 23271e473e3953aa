// max_grad_norm and on_nonfinite_gradient: clipping matches that of one process with the averages. A gradient that is
// infinite or NaN is reported with ranks and step, and the step is skipped or ended on all ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/autograd/autocast.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/clip.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/reduce/hooks.h"
#include "tests/ddp/heads.h"
#include "tests/ddp/ranks.h"
#include "tests/support/in_mib.h"
#include "tests/support/message_of.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

using Options = DistributedDataParallelOptions;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const std::vector<double> kSmallBuckets{in_mib(1)};  // one bucket per gradient

std::vector<float> gradients_of(const Heads& model) {
  std::vector<float> values{gradient_of(model.trunk)};
  for (const Tensor& head : model.heads) values.push_back(gradient_of(head));
  return values;
}

// Returns the clipped gradients and the norm before for one process that has the average as its gradient.
std::pair<std::vector<float>, float> clipped_by_hand(float average, float limit) {
  Heads model;
  reshape(model(Tensor::full({1, 1}, average)), {}).backward();
  const float norm = optim::clip_grad_norm(model.named_parameters(), limit).item();
  return {gradients_of(model), norm};
}

class GradientChecks : public OverRanks {};
INSTANTIATE_TEST_SUITE_P(Wire, GradientChecks,
                         ::testing::Combine(::testing::Values("threads", "shm", "tcp"), ::testing::Values(2, 4)),
                         OverRanks::name);

TEST_P(GradientChecks, AveragesAreClippedAsOneProcessClipsThem) {
  const float average = average_of_powers(ranks());
  for (const float limit : {0.75F, 1000.0F, kInfinity}) {
    const auto [expected, norm] = clipped_by_hand(average, std::min(limit, 1000.0F));
    run([&, wanted = expected, wanted_norm = norm](auto group) {
      Heads model;
      DistributedDataParallel ddp(model, group, {.bucket_cap_mb = kSmallBuckets, .max_grad_norm = limit});
      EXPECT_EQ(ddp.last_grad_norm(), 0);
      for (int step = 0; step < 3; ++step) {
        clear_gradients(ddp);
        heads_loss(ddp, power_of_rank(*group)).backward();
        EXPECT_EQ(gradients_of(model), wanted);
        EXPECT_EQ(ddp.last_grad_norm(), wanted_norm);
      }
    });
  }
}

TEST_P(GradientChecks, AccumulatedGradientsAreClippedAfterAveraging) {
  const auto [expected, norm] = clipped_by_hand(2 * average_of_powers(ranks()), 0.5F);
  run([&, wanted = expected](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group,
                                {.max_grad_norm = 0.5F, .on_nonfinite_gradient = OnNonfiniteGradient::kSkipStep});
    {
      const auto local = ddp.no_sync();
      heads_loss(ddp, power_of_rank(*group)).backward();
      EXPECT_EQ(gradient_of(model.heads[0]), power_of_rank(*group)) << "not yet";
      EXPECT_EQ(ddp.last_grad_norm(), 0);
    }
    heads_loss(ddp, power_of_rank(*group)).backward();
    EXPECT_EQ(gradients_of(model), wanted);
  });
}

TEST_P(GradientChecks, ParametersWithoutAGradientDoNotCount) {
  run([](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group, {.find_unused_parameters = true, .max_grad_norm = 1});
    heads_loss(ddp, 4).backward();  // its slots are full
    clear_gradients(ddp);
    model.use = {0};
    heads_loss(ddp, 4).backward();
    EXPECT_FALSE(has_grad(model.heads[1]));
    EXPECT_EQ(ddp.last_grad_norm(), static_cast<float>(std::sqrt(2 * 4.0 * 4.0))) << "over trunk and head0";
    EXPECT_EQ(gradient_of(model.heads[0]), 4 * (1 / (ddp.last_grad_norm() + 1e-6F)));
  });
}

TEST_P(GradientChecks, GradientsOfComputationIn16BitsAreClippedInFloat) {
  const auto [expected, norm] = clipped_by_hand(average_of_powers(ranks()), 0.5F);  // exact in bfloat16
  run([&, wanted = expected](auto group) {
    const AutoCast autocast(DType::kBFloat16);
    Heads model;
    DistributedDataParallel ddp(model, group, {.max_grad_norm = 0.5F});
    reshape(cast(ddp(Tensor::full({1, 1}, power_of_rank(*group))), DType::kFloat32), {}).backward();
    EXPECT_EQ(gradients_of(model), wanted);
  });
}

// Runs three steps. In the second one, one rank's input is infinite or NaN.
struct Outcome {
  std::vector<float> weights;
  std::int64_t skipped = 0;
  std::string text;
};
Outcome train(const std::shared_ptr<ProcessGroup>& group, const Options& options, int bad_rank, float bad_value) {
  Heads model;
  DistributedDataParallel ddp(model, group, options);
  optim::SGD sgd(ddp.parameters(), {.lr = 0.5F, .momentum = 0.5F});
  for (int step = 0; step < 3; ++step) {
    sgd.zero_grad();
    const bool is_bad = step == 1 && group->rank() == bad_rank;
    heads_loss(ddp, is_bad ? bad_value : power_of_rank(*group)).backward();
    const bool skips = step == 1 && bad_rank >= 0;
    for (const NamedTensor& parameter : ddp.parameters())
      EXPECT_EQ(has_grad(parameter.tensor), !skips) << parameter.name;
    sgd.step();
  }
  check_replicas_equal(*group, ddp.parameters(), "weights");
  Outcome outcome{{}, ddp.skipped_steps(), ddp.last_skipped()};
  for (const NamedTensor& parameter : ddp.parameters()) outcome.weights.push_back(parameter.tensor.item());
  return outcome;
}

TEST_P(GradientChecks, AStepWithABadGradientOfOneRankIsSkippedOnAll) {
  for (const float bad : {kInfinity, std::nanf("")})
    for (const float limit : {0.0F, 0.5F}) {
      const Options options{.bucket_cap_mb = kSmallBuckets,
                            .max_grad_norm = limit,
                            .on_nonfinite_gradient = OnNonfiniteGradient::kSkipStep};
      run([&](auto group) {
        const Outcome outcome = train(group, options, last(), bad);
        EXPECT_EQ(outcome.skipped, 1);
        EXPECT_THAT(outcome.text,
                    AllOf(HasSubstr("DistributedDataParallel: step 2: gradients are infinite or NaN, on rank " +
                                    std::to_string(last()) + ": 'trunk', 'head0', 'head1', 'head2'"),
                          Not(HasSubstr("on rank 0"))));
        for (const float weight : outcome.weights) EXPECT_TRUE(std::isfinite(weight));
        EXPECT_EQ(train(group, options, -1, 0).skipped, 0);
      });
    }
}

TEST_P(GradientChecks, ABadGradientEndsTheStepOnAllRanksWithOneText) {
  const auto failures = failures_of([&](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group, {.on_nonfinite_gradient = OnNonfiniteGradient::kThrow});
    heads_loss(ddp, 1).backward();
    clear_gradients(ddp);
    const Tensor loss = heads_loss(ddp, group->rank() == 0 ? kInfinity : 1);
    const std::string message = message_of([&] { loss.backward(); });
    EXPECT_FALSE(has_grad(model.trunk));
    heads_loss(ddp, power_of_rank(*group)).backward();  // the group stays usable
    EXPECT_EQ(gradient_of(model.heads[2]), average_of_powers(group->world_size()));
    throw Error("{}", message);
  });
  EXPECT_THAT(failures, Each(AllOf(HasSubstr("step 2: gradients are infinite or NaN, on rank 0: 'trunk', 'head0'"),
                                   HasSubstr("kSkipStep skips such steps"), failures[0])));
}

TEST_P(GradientChecks, AnOverflowOfTheSumIsNotBlamedOnARank) {
  run([](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group, {.on_nonfinite_gradient = OnNonfiniteGradient::kSkipStep});
    model.use = {0, 1, 2};
    const float large = 1e38F;  // times 3 for the trunk, and times 2 or 4 ranks
    heads_loss(ddp, large).backward();
    EXPECT_EQ(ddp.skipped_steps(), 1);
    EXPECT_THAT(ddp.last_skipped(),
                AllOf(HasSubstr("only in the average, which overflowed: 'trunk'"), Not(HasSubstr("on rank"))));
  });
}

TEST_P(GradientChecks, WithLocalGradientsAllRanksSkipTogether) {
  run([&](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group,
                                {.comm_hook = hooks::no_op(),
                                 .max_grad_norm = INFINITY,
                                 .on_nonfinite_gradient = OnNonfiniteGradient::kSkipStep});
    heads_loss(ddp, group->rank() == last() ? kInfinity : 1).backward();
    EXPECT_EQ(ddp.skipped_steps(), 1);
    EXPECT_FALSE(has_grad(model.heads[0]));
    EXPECT_THAT(ddp.last_skipped(), HasSubstr("on rank " + std::to_string(last())));
    heads_loss(ddp, power_of_rank(*group)).backward();
    EXPECT_EQ(ddp.last_grad_norm(), static_cast<float>(std::sqrt(12.0) * power_of_rank(*group))) << "this rank's norm";
  });
}

TEST_P(GradientChecks, ARankWithoutDataClipsAndSkipsWithTheOthers) {
  run([&](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group,
                                {.max_grad_norm = 0.5F, .on_nonfinite_gradient = OnNonfiniteGradient::kSkipStep});
    optim::SGD sgd(ddp.parameters(), {.lr = 0.5F, .momentum = 0.5F});
    const auto train = [&] {
      for (int step = 0; step < (group->rank() == 0 ? 4 : 1); ++step) {
        sgd.zero_grad();
        heads_loss(ddp, step == 2 ? kInfinity : power_of_rank(*group)).backward();
        sgd.step();
      }
    };
    ddp.join(train, {.after_step = [&] { sgd.step(); }});
    EXPECT_EQ(ddp.skipped_steps(), 1);
    EXPECT_TRUE(std::isfinite(ddp.last_grad_norm()) && ddp.last_grad_norm() > 0);
    check_replicas_equal(*group, ddp.parameters(), "weights");
    check_replicas_equal(*group, sgd.state(), "momenta");
  });
}

TEST_P(GradientChecks, WithLossScalingTheLimitAppliesToUnscaledGradients) {
  const auto [expected, norm] = clipped_by_hand(average_of_powers(ranks()), 0.5F);
  run([&, wanted = expected, wanted_norm = norm](auto group) {
    Heads model;
    optim::LossScaler scaler({.initial = 1024});
    DistributedDataParallel ddp(
        model, group,
        {.max_grad_norm = 0.5F, .on_nonfinite_gradient = OnNonfiniteGradient::kSkipStep, .loss_scaler = &scaler});
    optim::SGD sgd(ddp.parameters(), {.lr = 0.5F, .loss_scaler = &scaler});
    scaler.scale(heads_loss(ddp, power_of_rank(*group))).backward();
    EXPECT_EQ(ddp.last_grad_norm(), wanted_norm);
    std::vector<float> scaled = wanted;
    for (float& value : scaled) value *= 1024;
    EXPECT_EQ(gradients_of(model), scaled);
    sgd.step();
    sgd.zero_grad();
    const float weight = model.heads[0].item();
    scaler.scale(heads_loss(ddp, group->rank() == 0 ? kInfinity : 1)).backward();
    sgd.step();
    EXPECT_EQ(scaler.value(), 512);
    EXPECT_EQ(scaler.skipped_steps(), 1);
    EXPECT_EQ(model.heads[0].item(), weight);
  });
}

TEST_P(GradientChecks, AHookWithErrorFeedbackCannotSkipSteps) {
  const auto failures = failures_of([&](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group,
                                {.comm_hook = hooks::top_k(), .on_nonfinite_gradient = OnNonfiniteGradient::kSkipStep});
  });
  EXPECT_THAT(failures, Each(HasSubstr("kSkipStep cannot be combined with the comm_hook top_k")));
  run([](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group,
                                {.comm_hook = hooks::bf16(), .on_nonfinite_gradient = OnNonfiniteGradient::kSkipStep});
    heads_loss(ddp, power_of_rank(*group)).backward();
    EXPECT_EQ(gradient_of(model.heads[0]), average_of_powers(group->world_size()));
    heads_loss(ddp, group->rank() == 0 ? kInfinity : 1).backward();
    EXPECT_EQ(ddp.skipped_steps(), 1);
  });
}

TEST(GradientCheck, IgnoredNaNSpreads) {
  Heads model;
  DistributedDataParallel ddp(model, ProcessGroup::wrap({}, make_backend("local", {})), {.max_grad_norm = 1});
  heads_loss(ddp, std::nanf("")).backward();
  EXPECT_TRUE(std::isnan(gradient_of(model.heads[0])));
  EXPECT_EQ(ddp.skipped_steps(), 0);
}

TEST(GradientCheck, ASingleRankNamesItself) {
  Heads model;
  DistributedDataParallel ddp(model, ProcessGroup::wrap({}, make_backend("local", {})),
                              {.on_nonfinite_gradient = OnNonfiniteGradient::kThrow});
  const Tensor loss = heads_loss(ddp, kInfinity);
  EXPECT_THAT(message_of([&] { loss.backward(); }),
              HasSubstr("step 1: gradients are infinite or NaN, on rank 0: 'trunk'"));
}

TEST(GradientCheck, ANormThatIsNotComputedIsRefused) {
  Heads model;
  DistributedDataParallel ddp(model, ProcessGroup::wrap({}, make_backend("local", {})));
  EXPECT_THAT(message_of([&] { ddp.last_grad_norm(); }), HasSubstr("set .max_grad_norm"));
}

}  // namespace
}  // namespace lockstep::testing

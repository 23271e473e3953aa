// ZeroRedundancyOptimizer with clipping by norm, infinite or NaN gradients, and comm hooks, compared with the plain
// step: bitwise for ranks that share memory; for others a norm may be the adjacent float.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/optim/clip.h"
#include "lockstep/reduce/hooks.h"
#include "src/comm/flight/flight_dump.h"
#include "src/ddp/optimizers/shared_squares.h"
#include "tests/ddp/ranks.h"
#include "tests/ddp/zero_trainee.h"
#include "tests/support/message_of.h"
#include "tests/support/page.h"
#include "tests/support/temporary.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kTrained = 6;
constexpr float kLimit = 0.01F;  // smaller than the norm of each step

struct ZeroChoice {
  const char* name;
  std::function<void(ZeroSettings&)> choose;  // called on each rank, because a hook belongs to one wrapper
};

const std::vector<ZeroChoice>& zero_choices() {
  static const std::vector<ZeroChoice> all = {
      {"clip", [](auto& s) { s.options.max_grad_norm = kLimit; }},
      {"norm_alone", [](auto& s) { s.options.max_grad_norm = kInfinity; }},
      {"skip",
       [](auto& s) {
         s.options.on_nonfinite_gradient = OnNonfiniteGradient::kSkipStep;
         s.bad_value = kInfinity;
       }},
      {"clip_and_skip",
       [](auto& s) {
         s.options.max_grad_norm = kLimit;
         s.options.on_nonfinite_gradient = OnNonfiniteGradient::kSkipStep;
         s.bad_value = NAN;
       }},
      {"clip_unused",
       [](auto& s) {
         s.options.max_grad_norm = kLimit;
         s.options.find_unused_parameters = s.leaves_some = true;
       }},
      {"clip_and_skip_in_join",
       [](auto& s) {
         s.options.max_grad_norm = kLimit;
         s.options.on_nonfinite_gradient = OnNonfiniteGradient::kSkipStep;
         s.joins = true;
         s.bad_value = kInfinity;
       }},
      {"clip_weighted_gathered",
       [](auto& s) {
         s.options.max_grad_norm = kLimit;
         s.weighs = s.gathers = true;
       }},
      {"clip_under_loss_scaling",
       [](auto& s) {
         s.options.max_grad_norm = kLimit;
         s.options.on_nonfinite_gradient = OnNonfiniteGradient::kSkipStep;
         s.scales = true;
       }},
      {"bf16", [](auto& s) { s.options.comm_hook = hooks::bf16(); }},
      {"int8", [](auto& s) { s.options.comm_hook = hooks::int8({.block = 16}); }},
      {"top_k_unused",
       [](auto& s) {
         s.options.comm_hook = hooks::top_k({.ratio = 0.2});
         s.options.find_unused_parameters = s.leaves_some = true;
       }},
      {"power_sgd", [](auto& s) { s.options.comm_hook = hooks::power_sgd({.start_step = 2, .next = hooks::fp16()}); }},
      {"hook_clip_and_skip",
       [](auto& s) {
         s.options.comm_hook = hooks::bf16();
         s.options.max_grad_norm = kLimit;
         s.options.on_nonfinite_gradient = OnNonfiniteGradient::kSkipStep;
         s.bad_value = kInfinity;
       }},
      {"hook_gathered_in_join",
       [](auto& s) {
         s.options.comm_hook = hooks::bf16();
         s.joins = s.gathers = true;
       }},
  };
  return all;
}

ZeroSettings settings_of(const ZeroChoice& choice) {
  ZeroSettings settings;
  choice.choose(settings);
  return settings;
}

std::vector<float> values_of(const ZeroTrainee& trainee) {
  std::vector<float> values;
  for (const auto& [name, tensor] : trainee.net.named_parameters())
    for (const float value : tensor.span<float>()) values.push_back(value);
  return values;
}

void expect_plain_training(const std::shared_ptr<ProcessGroup>& group, const ZeroChoice& choice,
                           const std::string& optimizer, bool to_the_bit) {
  ZeroTrainee plain(group, optimizer, false, 13, settings_of(choice)),
      zero(group, optimizer, true, 13, settings_of(choice));
  const std::string before = plain.bits();
  plain.run(kTrained);
  zero.run(kTrained);
  EXPECT_NE(plain.bits(), before);
  check_replicas_equal(*group, zero.net.named_parameters(), "weights");
  EXPECT_EQ(zero.ddp.skipped_steps(), plain.ddp.skipped_steps());
  const bool is_bad = zero.settings.bad_value != 0 || (zero.settings.scales && group->world_size() > 1);
  EXPECT_EQ(zero.ddp.skipped_steps(), is_bad ? 1 : 0);
  EXPECT_EQ(zero.ddp.last_skipped(), plain.ddp.last_skipped());
  EXPECT_EQ(zero.optimizer->slice_holders(), group->world_size());
  const bool has_norm = zero.settings.options.max_grad_norm > 0;
  if (has_norm) {
    EXPECT_GT(plain.ddp.last_grad_norm(), kLimit) << "something was clipped";
    const float norm = plain.ddp.last_grad_norm();  // infinite if the last step was skipped
    EXPECT_TRUE(zero.ddp.last_grad_norm() == norm || std::abs(zero.ddp.last_grad_norm() - norm) < norm * 1e-4F) << norm;
  }
  if (to_the_bit) {
    EXPECT_EQ(zero.bits(), plain.bits());
    if (has_norm) {
      EXPECT_EQ(zero.ddp.last_grad_norm(), plain.ddp.last_grad_norm());
    }
    return;
  }
  const std::vector<float> actual = values_of(zero), expected = values_of(plain);
  for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(actual[i], expected[i], 1e-5F) << i;
}

using ZeroOptionsCase = std::tuple<std::size_t, int, const char*>;

class ZeroOptions : public ::testing::TestWithParam<ZeroOptionsCase> {};
std::string zero_options_name(const ::testing::TestParamInfo<ZeroOptionsCase>& test) {
  const auto& [choice, ranks, wire] = test.param;
  return std::string(zero_choices()[choice].name) + "_" + std::to_string(ranks) + "_" + wire;
}
INSTANTIATE_TEST_SUITE_P(All, ZeroOptions,
                         ::testing::Combine(::testing::Range(std::size_t{0}, zero_choices().size()),
                                            ::testing::Values(1, 2, 3, 5),
                                            ::testing::Values("threads", "tcp", "nodes")),
                         zero_options_name);

TEST_P(ZeroOptions, TrainAsThePlainStepDoes) {
  const auto& [index, ranks, wire] = GetParam();
  const ZeroChoice& choice = zero_choices()[index];
  const bool to_the_bit = std::string(wire) == "threads" && settings_of(choice).scales == false;
  expect_all_well(run_ranks(
      ranks, wire, [&choice, to_the_bit](auto group) { expect_plain_training(group, choice, "adamw", to_the_bit); }));
}

TEST(ZeroOptionsOfAllOptimizers, ClipAndSkipToTheBit) {
  for (const char* const name : {"clip_and_skip", "hook_clip_and_skip"}) {
    const auto choice = std::find_if(zero_choices().begin(), zero_choices().end(),
                                     [&](const auto& c) { return c.name == std::string(name); });
    for (const auto& [optimizer, make] : zero_optimizers()) {
      SCOPED_TRACE(std::string(name) + ", " + optimizer);
      const bool to_the_bit =
          optimizer != "loop_sgd" ||
          settings_of(*choice).options.comm_hook;  // the optimizer has its own loop, so it shares by calls
      expect_all_well(run_ranks(4, "threads", [&, kind = optimizer](auto group) {
        expect_plain_training(group, *choice, kind, to_the_bit);
      }));
    }
  }
}

// Sums of squares over slices are added in double, in another order than the plain step's: the norm of equal averages
// is the same float or an adjacent one. TCP between single ranks sums in rank order.
TEST(ZeroNorm, OfSlicesIsThePlainOneOrAnAdjacentFloat) {
  for (const int ranks : {2, 3, 4, 5})
    expect_all_well(run_ranks(ranks, "tcp", [](auto group) {
      ZeroSettings settings;
      settings.options.max_grad_norm = kInfinity;
      for (const std::int64_t width : {7, 13, 40, 96}) {
        ZeroTrainee plain(group, "adamw", false, width, settings), zero(group, "adamw", true, width, settings);
        plain.run(1);
        zero.run(1);
        const float expected = plain.ddp.last_grad_norm(), actual = zero.ddp.last_grad_norm();
        EXPECT_GE(actual, std::nextafter(expected, 0.0F)) << width;
        EXPECT_LE(actual, std::nextafter(expected, kInfinity)) << width;
        float extremes[] = {actual, -actual};
        group->all_reduce(std::span<float>(extremes), ReduceOp::kMax);
        EXPECT_EQ(extremes[0], -extremes[1]) << "the same bits on all ranks";
      }
    }));
}

// The text has step and ranks. All ranks throw the same from backward and can continue.
TEST(ZeroThrow, ABadGradientEndsTheStepOnAllRanksWithOneText) {
  for (const char* const wire : {"threads", "tcp"})
    for (const bool has_hook : {false, true}) {
      ZeroSettings settings;
      settings.options.on_nonfinite_gradient = OnNonfiniteGradient::kThrow;
      settings.bad_value = kInfinity;
      const auto failures = run_ranks(3, wire, [&](auto group) {
        ZeroSettings own = settings;
        if (has_hook) own.options.comm_hook = hooks::bf16();
        ZeroTrainee plain(group, "adamw", false, 13, own), zero(group, "adamw", true, 13, own);
        std::string message;
        for (ZeroTrainee* const trainee : {&plain, &zero}) {
          trainee->run(3);
          message = message_of([&] { trainee->run_step(3); });
          trainee->run_step(4);
        }
        if (std::string(wire) == "threads" || has_hook) {
          EXPECT_EQ(zero.bits(), plain.bits());
        }
        check_replicas_equal(*group, zero.net.named_parameters(), "weights");
        throw Error("{}", message);
      });
      EXPECT_THAT(failures, Each(AllOf(HasSubstr("step 4: gradients are infinite or NaN, on rank 2: 'b.bias'. Check"),
                                       failures[0])))
          << wire;
    }
}

// A hook leaves complete averages, which a program may clip itself.
TEST(ZeroClipByHand, WorksOnWholeAverages) {
  expect_all_well(run_ranks(3, "threads", [](auto group) {
    ZeroSettings settings;
    ZeroTrainee plain(group, "sgd", false, 13, settings);
    settings.options.comm_hook = [](ProcessGroup& ranks, const GradBucket& bucket) {
      return ranks.all_reduce_async(bucket.buffer, bucket.count, bucket.dtype, ReduceOp::kAvg);
    };
    ZeroTrainee zero(group, "sgd", true, 13, settings);
    for (ZeroTrainee* const trainee : {&plain, &zero})
      for (int step = 0; step < kTrained; ++step) {
        trainee->optimizer->zero_grad();
        trainee->backward(step);
        optim::clip_grad_norm(trainee->ddp.parameters(), kLimit);
        trainee->optimizer->step();
      }
    EXPECT_EQ(zero.bits(), plain.bits());
  }));
}

TEST(ZeroMistakesOfHooks, AStepWithGradientsOfOneRankIsRefused) {
  EXPECT_THAT(run_ranks(2, "threads",
                        [](auto group) {
                          ZeroSettings settings;
                          settings.options.comm_hook = hooks::bf16();
                          ZeroTrainee trainee(group, "sgd", true, 13, settings);
                          trainee.run(2);
                          trainee.optimizer->zero_grad();
                          const auto local = trainee.ddp.no_sync();
                          trainee.backward(2);
                          trainee.optimizer->step();
                        }),
              Each(HasSubstr("is only this rank's, from a backward under no_sync()")));
}

// Ranks that share memory compute the norm between two more barriers; others add their slices' sums in one more call.
TEST(ZeroCallsOfClipping, AreTwoBarriersOrOneSum) {
  for (const std::string wire : {"threads", "tcp"}) {
    const std::string path = temporary("flight.json");
    expect_all_well(run_ranks(2, wire, [&](auto group) {
      ZeroSettings settings;
      settings.options.max_grad_norm = kLimit;
      ZeroTrainee(group, "sgd", true, 12, settings).run(3);
      if (group->rank() == 0) group->dump_flight_record(path);
    }));
    std::map<std::string, int> calls;  // by purpose
    const FlightDump dump = flight_dump_from_json(text_of_file(path), path);
    std::remove(path.c_str());
    ASSERT_FALSE(dump.groups.empty());
    for (const FlightEntry& call : dump.groups.back().operations) ++calls[call.purpose];
    const bool is_shared = wire == "threads";
    EXPECT_EQ(calls["gradients to square, of pass"], is_shared ? 3 : 0);
    EXPECT_EQ(calls["squares of pass"], is_shared ? 3 : 0);
    EXPECT_EQ(calls["squares of slices"], is_shared ? 0 : 3);
    EXPECT_EQ(calls["weights"] == 0, is_shared);
    EXPECT_EQ(calls["bucket"], 0);
  }
}

TEST(ZeroAfterwards, TheWrapperClipsWholeAveragesAgain) {
  expect_all_well(run_ranks(2, "threads", [](auto group) {
    ZeroSettings settings;
    settings.options.max_grad_norm = kLimit;
    ZeroTrainee plain(group, "plain_sgd", false, 13, settings), zero(group, "plain_sgd", true, 13, settings);
    plain.run(2);
    zero.run(2);
    zero.zero.reset();
    for (ZeroTrainee* const trainee : {&plain, &zero}) {
      trainee->optimizer->zero_grad();
      trainee->backward(2);
    }
    EXPECT_EQ(zero.ddp.last_grad_norm(), plain.ddp.last_grad_norm());
    for (std::size_t i = 0; i < plain.ddp.parameters().size(); ++i) {
      const Tensor expected = grad(plain.ddp.parameters()[i].tensor), actual = grad(zero.ddp.parameters()[i].tensor);
      for (std::int64_t k = 0; k < expected.count(); ++k) ASSERT_EQ(actual.data<float>()[k], expected.data<float>()[k]);
    }
  }));
}

TEST(RanksThatSum, HaveAboutAsManyElements) {
  const std::vector<std::int64_t> counts = {10, 1000, 3, 500, 500, 0, 7, 990};
  for (const int ranks : {1, 2, 3, 5}) {
    const std::vector<int> of = ranks_that_sum(counts, ranks);
    ASSERT_EQ(of.size(), counts.size());
    std::vector<std::int64_t> loads(static_cast<std::size_t>(ranks));
    for (std::size_t k = 0; k < counts.size(); ++k) loads.at(static_cast<std::size_t>(of[k])) += counts[k];
    const std::int64_t all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    EXPECT_LE(*std::max_element(loads.begin(), loads.end()), std::max<std::int64_t>(1000, all / ranks + 20)) << ranks;
  }
  EXPECT_TRUE(ranks_that_sum({}, 3).empty());
}

}  // namespace
}  // namespace lockstep::testing

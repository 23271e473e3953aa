// StepInBackward compared with step() after backward(): the same bits, computed during backward. Unsupported
// combinations are refused.
#include "lockstep/ddp/step_in_backward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/optim/clip.h"
#include "tests/ddp/ranks.h"
#include "tests/ddp/zero_trainee.h"

namespace lockstep::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// A trainee whose steps are made by backward.
struct InBackward : ZeroTrainee {
  InBackward(const std::shared_ptr<ProcessGroup>& group, const std::string& kind, const ZeroSettings& settings = {})
      : ZeroTrainee(group, kind, false, 13, as_made_in_backward(settings)), step(ddp, *optimizer) {}
  static ZeroSettings as_made_in_backward(ZeroSettings settings) {
    settings.steps_in_backward = true;
    return settings;
  }
  StepInBackward step;
};

struct Case {
  int ranks;
  std::string transport, optimizer;
};

class StepInBackwardTest : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, StepInBackwardTest, ::testing::ValuesIn([] {
                           std::vector<Case> cases;
                           for (const auto& [optimizer, make] : zero_optimizers())
                             cases.push_back({2, "threads", optimizer});
                           cases.push_back({1, "threads", "adamw"});
                           cases.push_back({2, "tcp", "nadam"});
                           cases.push_back({4, "tcp", "adamw"});
                           cases.push_back({4, "shm", "sgd"});
                           return cases;
                         }()),
                         [](const auto& test) {
                           return test.param.optimizer + "_" + std::to_string(test.param.ranks) + "_" +
                                  test.param.transport;
                         });

TEST_P(StepInBackwardTest, HasTheBitsOfThePlainStep) {
  const auto& [ranks, transport, kind] = GetParam();
  expect_all_well(run_ranks(ranks, transport, [kind = kind](auto group) {
    ZeroTrainee plain(group, kind, false);
    InBackward other(group, kind);
    for (int step = 0; step < 20; ++step) {
      plain.run_step(step);
      other.run_step(step);
      ASSERT_EQ(other.bits(), plain.bits()) << "step " << step;
    }
  }));
}

// The hook waits, so each average is available at the next check, and the last layer is updated before the first one's
// gradient is ready.
TEST(StepInBackwardOrder, UpdatesABucketWhileBackwardRuns) {
  expect_all_well(run_ranks(2, "threads", [](auto group) {
    ZeroSettings settings;
    settings.options.comm_hook = [](ProcessGroup& all, const GradBucket& bucket) {
      all.all_reduce(bucket.buffer, bucket.count, bucket.dtype, ReduceOp::kAvg);
      return Work();
    };
    InBackward trainee(group, "sgd", settings);
    const Tensor last = trainee.ddp.parameters().back().tensor, first = trainee.ddp.parameters().front().tensor;
    const std::vector<float> before(last.span<float>().begin(), last.span<float>().end());
    bool was_updated = false;
    const HookHandle hook = register_grad_hook(first, [&](const Tensor&) {
      was_updated = !std::equal(before.begin(), before.end(), last.span<float>().begin());
    });
    trainee.run_step(0);
    EXPECT_TRUE(was_updated);
  }));
}

TEST(StepInBackwardMatrix, WorksWithTheOptionsOfTheWrapper) {
  using Choose = std::function<void(ZeroSettings&)>;
  const std::map<std::string, Choose> choices = {
      {"delayed_parameters", [](auto& s) { s.options.delayed_parameters = {"b.weight"}; }},
      {"comm_hook",
       [](auto& s) {
         s.options.comm_hook = [](ProcessGroup& group, const GradBucket& bucket) {
           return group.all_reduce_async(bucket.buffer, bucket.count, bucket.dtype, ReduceOp::kAvg);
         };
       }},
      {"no_sync", [](auto& s) { s.gathers = true; }},
      {"set_weight", [](auto& s) { s.weighs = true; }},
      {"join", [](auto& s) { s.joins = true; }},
  };
  for (const auto& [name, choose] : choices) {
    SCOPED_TRACE(name);
    ZeroSettings settings;
    choose(settings);
    expect_all_well(run_ranks(2, "threads", [&settings](auto group) {
      ZeroTrainee plain(group, "adamw", false, 13, settings);
      InBackward other(group, "adamw", settings);
      plain.run(6);
      other.run(6);
      EXPECT_EQ(other.bits(), plain.bits());
    }));
  }
}

TEST(StepInBackwardMistakes, AreRefusedOnAllRanksWithTheReason) {
  const auto failures = [](const ZeroSettings& settings) {
    return run_ranks(2, "threads", [&](auto group) { InBackward trainee(group, "adam", settings); });
  };
  ZeroSettings settings;
  settings.options.find_unused_parameters = true;
  EXPECT_THAT(failures(settings), Each(HasSubstr("which parameters have no gradient")));
  settings = {};
  settings.options.static_graph = true;
  EXPECT_THAT(failures(settings), Each(HasSubstr("which parameters have no gradient")));
  settings = {};
  settings.options.max_grad_norm = 1;
  EXPECT_THAT(failures(settings), Each(HasSubstr("their result is known when all gradients are ready")));
  settings = {};
  settings.scales = true;
  EXPECT_THAT(failures(settings), Each(HasSubstr("Adam has a loss_scaler")));
  EXPECT_THAT(run_ranks(2, "threads",
                        [](auto group) {
                          ZeroTrainee trainee(group, "adam", true);
                          const StepInBackward step(trainee.ddp, *trainee.optimizer);
                        }),
              Each(HasSubstr("a wrapper can have one at a time")));
}

TEST(StepInBackwardMistakes, OfStepsThrow) {
  const auto failures = [](const std::function<void(InBackward&)>& body) {
    return run_ranks(2, "threads", [&](auto group) {
      InBackward trainee(group, "sgd");
      body(trainee);
    });
  };
  EXPECT_THAT(failures([](auto& trainee) {
                trainee.backward(0);
                trainee.optimizer->step();
              }),
              Each(HasSubstr("SGD::step: StepInBackward makes each step during backward: do not call step()")));
  EXPECT_THAT(failures([](auto& trainee) {
                trainee.backward(0);
                optim::clip_grad_norm(trainee.ddp.parameters(), 1);
              }),
              Each(HasSubstr("StepInBackward has already used it for the step")));
}

}  // namespace
}  // namespace lockstep::testing

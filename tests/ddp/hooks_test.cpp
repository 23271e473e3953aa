// DistributedDataParallel with the library's comm hooks: the loss compared with plain averaging, local SGD, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/autograd/losses.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/ddp/model_averager.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/loss.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/reduce/hooks.h"
#include "lockstep/tensor/random.h"
#include "tests/ddp/heads.h"
#include "tests/ddp/ranks.h"
#include "tests/ddp/zero_trainee.h"

namespace lockstep::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

struct SmallNet : nn::Module {
  nn::Linear first{8, 24}, second{24, 24}, last{24, 4};
  SmallNet() {
    add("first", first), add("second", second), add("last", last);
    Philox random(/*seed=*/3, /*stream=*/0);  // weights must not depend on the numbers that other tests drew
    for (const Tensor& weight : parameters())
      for (float& value : weight.span<float>()) value = random.uniform(-0.3f, 0.3f);
  }
  Tensor forward(const Tensor& x) override { return last(relu(second(relu(first(x))))); }
};

// Returns the mean loss of the last steps of a training in which each rank has different samples of the same task. The
// classes are the four quadrants of two of eight coordinates.
double trained_loss(int ranks, const std::function<CommHook()>& make) {
  double result = 0;
  expect_all_well(run_ranks(ranks, "threads", [&](auto group) {
    SmallNet net;
    DistributedDataParallel ddp(net, group, {.comm_hook = make()});
    optim::SGD sgd(ddp.parameters(), {.lr = 0.1f, .momentum = 0.5f});
    Philox random(/*seed=*/1, static_cast<std::uint64_t>(group->rank()));
    constexpr int kSteps = 200, kLast = 50, kBatch = 16;
    double sum = 0;
    for (int step = 0; step < kSteps; ++step) {
      const Tensor x = Tensor::empty({kBatch, 8}), labels = Tensor::empty({kBatch}, DType::kInt64);
      for (int row = 0; row < kBatch; ++row) {
        float* const point = x.span<float>().data() + row * 8;
        for (int i = 0; i < 8; ++i) point[i] = random.uniform(-1.f, 1.f);
        labels.span<std::int64_t>()[static_cast<std::size_t>(row)] = (point[0] > 0 ? 1 : 0) + (point[5] > 0 ? 2 : 0);
      }
      Tensor loss = nn::cross_entropy(ddp(x), labels);
      sgd.zero_grad();
      loss.backward();
      sgd.step();
      double mean = loss.item();
      group->all_reduce(&mean, 1, DType::kFloat64, ReduceOp::kAvg);
      if (step >= kSteps - kLast) sum += mean / kLast;
    }
    check_replicas_equal(*group, net.named_parameters(), "weights");
    if (group->rank() == 0) result = sum;
  }));
  return result;
}

void expect_loss_of_average(int ranks, const std::vector<std::function<CommHook()>>& makers) {
  const double plain = trained_loss(ranks, [] { return CommHook(); });
  ASSERT_LT(plain, 0.6) << "it learns; it began at 1.4";
  for (const auto& make : makers)
    EXPECT_LT(trained_loss(ranks, make), plain * 1.15 + 0.02) << make()->describe() << ", " << ranks << " ranks";
}

TEST(HooksInTraining, ReachTheLossOfPlainAveraging) {
  expect_loss_of_average(
      2, {[] { return hooks::bf16(); }, [] { return hooks::int8(); }, [] { return hooks::top_k({.ratio = 0.05}); },
          [] { return hooks::power_sgd({.matrix_rank = 2, .start_step = 10}); }});
  expect_loss_of_average(
      4, {[] { return hooks::top_k({.ratio = 0.05}); },
          [] { return hooks::power_sgd({.matrix_rank = 2, .start_step = 10, .next = hooks::fp16()}); }});
}

std::vector<float> state_of(const CommHook& hook, const std::string& name) {
  for (const HookState& state : hook->state())
    if (state.name == name)
      return {static_cast<const float*>(state.data), static_cast<const float*>(state.data) + state.count};
  ADD_FAILURE() << "no state " << name;
  return {};
}

// The unsent remainder of a layer, over all ranks. Passes in which no rank uses the layer keep it and send none of it
// as a gradient.
TEST(HooksAndUnusedParameters, KeepTheErrorOfParametersThatNoRankUsed) {
  const std::vector<std::pair<std::string, std::function<CommHook()>>> makers = {
      {"top_k.error.", [] { return hooks::top_k({.ratio = 0.1}); }},
      {"power_sgd.error.", [] { return hooks::power_sgd({.start_step = 0, .min_compression = 1}); }},
      {"power_sgd.q.",
       [] { return hooks::power_sgd({.start_step = 0, .error_feedback = false, .min_compression = 1}); }}};
  for (const auto& [prefix, make] : makers)
    for (const char* const transport : {"threads", "tcp"})
      for (const bool freezes : {false, true})
        expect_all_well(run_ranks(2, transport, [&, prefix = prefix, make = make](auto group) {
          ZeroSettings settings;
          settings.options = {.find_unused_parameters = !freezes, .comm_hook = make()};
          ZeroTrainee trainee(group, "sgd", false, 13, settings);
          const Tensor weight = trainee.net.children()[1].second->parameters().front();
          trainee.run(3);
          const CommHook& hook = trainee.ddp.comm_hook();
          const std::vector<float> before = state_of(hook, prefix + "middle.weight"),
                                   others = state_of(hook, prefix + "a.weight");
          trainee.net.leaves_middle = true;
          if (freezes)
            for (const Tensor& each : trainee.net.children()[1].second->parameters()) require_grad(each, false);
          for (int step = 3; step < 5; ++step) {
            for (const NamedTensor& parameter : trainee.ddp.parameters())
              if (requires_grad(parameter.tensor)) clear_grad(parameter.tensor);
            trainee.backward(step);
            EXPECT_EQ(state_of(hook, prefix + "middle.weight"), before) << hook->describe() << ", step " << step;
          }
          EXPECT_NE(state_of(hook, prefix + "a.weight"), others);
          if (freezes) return;
          EXPECT_FALSE(has_grad(weight));
          trainee.net.leaves_middle = group->rank() == 1;
          trainee.optimizer->zero_grad();
          trainee.backward(5);
          EXPECT_TRUE(has_grad(weight));
          EXPECT_NE(state_of(hook, prefix + "middle.weight"), before) << "used on rank 0, so rank 1 sends its error";
        }));
}

// With one weight the gradient is the input.
TEST(LocalSgd, LeavesGradientsAndAveragesWeights) {
  for (const char* transport : {"threads", "tcp"})
    expect_all_well(run_ranks(2, transport, [](auto group) {
      Heads model(1);
      DistributedDataParallel ddp(model, group, {.comm_hook = hooks::no_op()});
      PeriodicModelAverager averager(ddp, {.period = 2});
      optim::SGD sgd(ddp.parameters(), {.lr = 1});
      const float mine = group->rank() == 0 ? 1 : 3;
      heads_loss(ddp, mine).backward();
      EXPECT_EQ(gradient_of(model.heads[0]), mine);
      sgd.step();
      EXPECT_FALSE(averager.average_parameters());
      EXPECT_EQ(model.heads[0].item(), 1 - mine);
      EXPECT_TRUE(averager.average_parameters());
      EXPECT_EQ(averager.steps(), 2);
      EXPECT_EQ(model.heads[0].item(), -1) << "the mean of 0 and -2";
      check_replicas_equal(*group, ddp.parameters(), "weights");
    }));
}

TEST(LocalSgd, PostLocalAveragesGradientsUpToItsStart) {
  expect_all_well(run_ranks(4, "threads", [](auto group) {
    Heads model(1);
    DistributedDataParallel ddp(model, group, {.comm_hook = hooks::post_local_sgd({.start_step = 2})});
    PeriodicModelAverager averager(ddp, {.period = 2, .warmup_steps = 2});
    const auto mine = static_cast<float>(group->rank());
    std::string averaged;
    for (int step = 0; step < 6; ++step) {
      clear_gradients(ddp);
      heads_loss(ddp, mine).backward();
      EXPECT_EQ(gradient_of(model.heads[0]), step < 2 ? 1.5f : mine) << "step " << step;
      averaged += averager.average_parameters() ? 'a' : '-';
    }
    EXPECT_EQ(averaged, "---a-a");
  }));
}

TEST(LocalSgd, ASubgroupKeepsAveraging) {
  expect_all_well(run_ranks(4, "tcp", [](auto group) {
    const auto node = group->split(group->rank() / 2);
    Heads model(1);
    DistributedDataParallel ddp(model, group,
                                {.comm_hook = hooks::post_local_sgd({.start_step = 0, .subgroup = node})});
    heads_loss(ddp, static_cast<float>(group->rank())).backward();
    EXPECT_EQ(gradient_of(model.heads[0]), group->rank() < 2 ? 0.5f : 2.5f);
  }));
}

TEST(LocalSgd, OptionsOfTheAveragerAreCheckedOnAllRanks) {
  const auto said = [](const std::function<PeriodicModelAveragerOptions(int)>& options) {
    return run_ranks(2, "threads", [&](auto group) {
      Heads model(1);
      DistributedDataParallel ddp(model, group, {.comm_hook = hooks::no_op()});
      PeriodicModelAverager averager(ddp, options(group->rank()));
    });
  };
  EXPECT_THAT(said([](int) { return PeriodicModelAveragerOptions{.period = 0}; }),
              Each(HasSubstr("got a period of 0")));
  EXPECT_THAT(said([](int rank) { return PeriodicModelAveragerOptions{.period = 1 + rank}; }),
              Each(HasSubstr("rank 1 has period 2")));
}

// Wraps and runs a step on 2 and 4 ranks.
void expect_refused(const std::function<DistributedDataParallelOptions(int rank)>& options, const std::string& why,
                    const std::function<void(DistributedDataParallel&)>& use = {}) {
  for (const int ranks : {2, 4}) {
    const auto failures = run_ranks(ranks, "threads", [&](auto group) {
      Heads model;
      DistributedDataParallel ddp(model, group, options(group->rank()));
      if (use) use(ddp);
    });
    EXPECT_THAT(failures, Each(HasSubstr(why)));
  }
}

TEST(HookPairs, ThatCannotBeCombinedAreRefusedOnAllRanks) {
  using Options = DistributedDataParallelOptions;
  expect_refused([](int rank) { return Options{.comm_hook = rank == 1 ? hooks::bf16(hooks::int8()) : hooks::bf16()}; },
                 "rank 1: comm_hook int8: it compresses float32");
  expect_refused([](int) { return Options{.comm_hook = hooks::power_sgd({.next = hooks::top_k()})}; },
                 "keeps state by parameter");
  expect_refused([](int rank) { return Options{.comm_hook = rank == 1 ? hooks::fp16() : hooks::bf16()}; },
                 "rank 1 has a comm_hook fp16");
  expect_refused([](int) { return Options{.find_unused_parameters = true, .comm_hook = hooks::no_op()}; },
                 "the comm_hook no_op leaves each rank its own");
  expect_refused([](int) { return Options{.comm_hook = hooks::no_op()}; }, "join: not with the comm_hook no_op",
                 [](DistributedDataParallel& ddp) { ddp.join([] {}); });
  expect_refused([](int) { return Options{}; }, "PeriodicModelAverager: called in join()",
                 [](DistributedDataParallel& ddp) {
                   PeriodicModelAverager averager(ddp, {});
                   ddp.join([&] { averager.average_parameters(); });
                 });
  expect_refused([](int) { return Options{}; }, "PeriodicModelAverager: called in join()",
                 [](DistributedDataParallel& ddp) {
                   PeriodicModelAverager averager(ddp, {});
                   ddp.join([&] { averager.average_now(); });
                 });
  expect_refused([](int) { return Options{.comm_hook = hooks::power_sgd()}; }, "capture: the comm_hook power_sgd",
                 [](DistributedDataParallel& ddp) { ddp.capture([] { return Tensor(); }); });
}

}  // namespace
}  // namespace lockstep::testing

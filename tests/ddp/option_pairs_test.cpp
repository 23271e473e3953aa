// Every pair of options and calls of DistributedDataParallel: the averages are right, or an error explains why the two
// cannot be combined. Each option on 2 and 4 ranks, over shared memory and TCP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/reduce/hooks.h"
#include "tests/ddp/heads.h"
#include "tests/ddp/ranks.h"
#include "tests/support/in_mib.h"

namespace lockstep::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

struct Settings {
  DistributedDataParallelOptions options;
  bool weighs = false, joins = false, gathers = false, halves = false, begins_epochs = false;
};
struct Choice {
  const char* name;
  std::function<void(Settings&)> choose;
};

Work sum_of_shares(ProcessGroup& group, const GradBucket& bucket) {
  auto* values = static_cast<float*>(bucket.buffer);
  for (std::size_t i = 0; i < bucket.count; ++i) values[i] /= static_cast<float>(group.world_size());
  return group.all_reduce_async(values, bucket.count, bucket.dtype, ReduceOp::kSum);
}

const std::vector<Choice>& choices() {
  static const std::vector<Choice> all = {
      {"bucket_cap_mb",
       [](auto& settings) {
         settings.options.bucket_cap_mb = {in_mib(64), in_mib(128)};
       }},
      {"forward_sync_buffers", [](auto& settings) { settings.options.forward_sync_buffers = false; }},
      {"find_unused_parameters", [](auto& settings) { settings.options.find_unused_parameters = true; }},
      {"static_graph", [](auto& settings) { settings.options.static_graph = true; }},
      {"ignored_parameters", [](auto& settings) { settings.options.ignored_parameters = {"head0"}; }},
      {"delayed_parameters", [](auto& settings) { settings.options.delayed_parameters = {"head3"}; }},
      {"comm_hook", [](auto& settings) { settings.options.comm_hook = sum_of_shares; }},
      {"max_grad_norm", [](auto& settings) { settings.options.max_grad_norm = 0.5F; }},
      {"on_nonfinite_gradient",
       [](auto& settings) { settings.options.on_nonfinite_gradient = OnNonfiniteGradient::kSkipStep; }},
      {"bf16", [](auto& settings) { settings.halves = true; }},
      {"set_weight", [](auto& settings) { settings.weighs = true; }},
      {"join", [](auto& settings) { settings.joins = true; }},
      {"no_sync", [](auto& settings) { settings.gathers = true; }},
      {"begin_epoch", [](auto& settings) { settings.begins_epochs = true; }},
  };
  return all;
}

struct WithBuffer : Heads {
  Tensor seen = Tensor::zeros({1});
  WithBuffer() : Heads(4) { add_buffer("seen", seen); }
};

float clip_factor(const DistributedDataParallelOptions& options, const std::vector<float>& gradients) {
  if (options.max_grad_norm == 0) return 1;
  double squares = 0;
  for (const float value : gradients) squares += static_cast<double>(value) * value;
  return std::min(1.0F, options.max_grad_norm / (static_cast<float>(std::sqrt(squares)) + 1e-6F));
}

// Rank 0 of n has gradient 1 (n + 1 samples if they count), the others have 3 (one sample, and in join() one step
// fewer). If a pass may leave parameters without a gradient, only rank 0 uses head1 and no rank uses head2. With
// accumulation, two such passes are added.
void train(const std::shared_ptr<ProcessGroup>& group, const Settings& settings) {
  DistributedDataParallelOptions options = settings.options;
  if (settings.halves && !options.comm_hook) options.comm_hook = hooks::bf16();  // each rank has its own hook
  WithBuffer model;
  DistributedDataParallel ddp(model, group, options);
  const bool is_first = group->rank() == 0;
  const auto ranks = static_cast<float>(group->world_size());
  const float mine = is_first ? 1 : 3;
  model.seen.fill(mine);
  const bool may_leave = options.find_unused_parameters || options.static_graph;
  if (may_leave) model.use = is_first ? std::vector<std::size_t>{0, 1, 3} : std::vector<std::size_t>{0, 3};
  const auto run_step = [&](int step) {
    for (const Tensor& weight : model.parameters()) clear_grad(weight);
    if (settings.gathers) {
      const auto local = ddp.no_sync();
      heads_loss(ddp, mine).backward();
    }
    if (settings.weighs) ddp.set_weight(is_first ? ranks + 1 : 1);
    heads_loss(ddp, mine).backward();
    const float passes = settings.gathers ? 2 : 1;
    const bool is_alone = settings.joins && step == 2;
    const float first = passes * (!settings.weighs ? 1 / ranks : is_alone ? 1 : (ranks + 1) / (2 * ranks));
    const float others = is_alone ? 0 : passes - first;  // share of the mean
    const float mean = first * 1 + others * 3;
    const bool averages_head0 = options.ignored_parameters.empty();
    const float head1 = may_leave ? first * 1 : mean, trunk = may_leave ? first * 3 + others * 6 : 4 * mean;
    const float factor = clip_factor(options, {trunk, averages_head0 ? mean : 0, head1, may_leave ? 0 : mean, mean});
    EXPECT_EQ(gradient_of(model.heads[0]), averages_head0 ? mean * factor : passes * mine);
    EXPECT_EQ(gradient_of(model.heads[1]), head1 * factor);
    EXPECT_EQ(has_grad(model.heads[2]), !may_leave);
    EXPECT_EQ(gradient_of(model.heads[3]), mean * factor);
    EXPECT_EQ(gradient_of(model.trunk), trunk * factor);
    EXPECT_EQ(model.seen.item(), options.forward_sync_buffers ? 1 : mine);
  };
  const auto run_steps = [&] {
    if (settings.begins_epochs && !settings.joins) ddp.begin_epoch(3);
    for (int step = 0; step < (settings.joins && !is_first ? 2 : 3); ++step) run_step(step);
  };
  if (settings.joins)
    ddp.join(run_steps);
  else
    run_steps();
}

using Pair = std::tuple<std::size_t, std::size_t>;

class OptionPairs : public ::testing::TestWithParam<Pair> {};
INSTANTIATE_TEST_SUITE_P(All, OptionPairs, ::testing::ValuesIn([] {
                           std::vector<Pair> pairs;
                           for (std::size_t a = 0; a < choices().size(); ++a)
                             for (std::size_t b = a; b < choices().size(); ++b) pairs.emplace_back(a, b);
                           return pairs;
                         }()),
                         [](const auto& test) {
                           return std::string(choices()[std::get<0>(test.param)].name) + "_" +
                                  choices()[std::get<1>(test.param)].name;
                         });

void expect_averages_or_refusal(const Settings& settings, const std::vector<std::string>& failures) {
  if (settings.options.find_unused_parameters && settings.options.static_graph)
    EXPECT_THAT(failures, Each(HasSubstr("static_graph says that they do not")));
  else if (settings.joins && settings.options.static_graph)
    EXPECT_THAT(failures, Each(HasSubstr("join: not with static_graph")));
  else
    expect_all_well(failures);
}

TEST_P(OptionPairs, AverageCorrectlyOrAreRefused) {
  Settings settings;
  choices()[std::get<0>(GetParam())].choose(settings);
  choices()[std::get<1>(GetParam())].choose(settings);
  expect_averages_or_refusal(settings, run_ranks(2, "threads", [&settings](auto group) { train(group, settings); }));
}

using Cell = std::tuple<std::size_t, int, const char*>;

class OptionCells : public ::testing::TestWithParam<Cell> {};
INSTANTIATE_TEST_SUITE_P(All, OptionCells,
                         ::testing::Combine(::testing::Range(std::size_t{0}, choices().size()), ::testing::Values(2, 4),
                                            ::testing::Values("shm", "tcp")),
                         [](const auto& test) {
                           return std::string(choices()[std::get<0>(test.param)].name) + "_" + std::get<2>(test.param) +
                                  std::to_string(std::get<1>(test.param));
                         });

TEST_P(OptionCells, AverageCorrectlyOnEachWire) {
  const auto [choice, ranks, wire] = GetParam();
  Settings settings;
  choices()[choice].choose(settings);
  expect_averages_or_refusal(settings, run_ranks(ranks, wire, [&settings](auto group) { train(group, settings); }));
}

}  // namespace
}  // namespace lockstep::testing

// Every pair of options of DistributedDataParallel: the averages are right, or wrapping says why the two cannot be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "tests/ddp/heads.h"
#include "tests/ddp/ranks.h"
#include "tests/support/in_mib.h"

namespace lockstep::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

struct Choice {
  const char* name;
  std::function<void(DistributedDataParallelOptions&)> choose;
};

Work sum_of_halves(ProcessGroup& group, const BucketView& bucket) {
  auto* values = static_cast<float*>(bucket.data);
  for (std::size_t i = 0; i < bucket.count; ++i) values[i] /= 2;
  return group.all_reduce_async(values, bucket.count, bucket.dtype, ReduceOp::kSum);
}

const std::vector<Choice>& choices() {
  static const std::vector<Choice> all = {
      {"bucket_cap_mb",
       [](auto& options) {
         options.bucket_cap_mb = {in_mib(64), in_mib(128)};
       }},
      {"forward_sync_buffers", [](auto& options) { options.forward_sync_buffers = false; }},
      {"find_unused_parameters", [](auto& options) { options.find_unused_parameters = true; }},
      {"static_graph", [](auto& options) { options.static_graph = true; }},
      {"ignored_parameters", [](auto& options) { options.ignored_parameters = {"head0"}; }},
      {"delayed_parameters", [](auto& options) { options.delayed_parameters = {"head3"}; }},
      {"comm_hook", [](auto& options) { options.comm_hook = sum_of_halves; }},
  };
  return all;
}

struct WithBuffer : Heads {
  Tensor seen = Tensor::zeros({1});
  WithBuffer() : Heads(4) { add_buffer("seen", seen); }
};

// Rank 0 has 1, rank 1 has 3. Where a pass may leave parameters alone, head1 is rank 0's, and head2 nobody's.
void train(const std::shared_ptr<ProcessGroup>& group, const DistributedDataParallelOptions& options) {
  WithBuffer model;
  DistributedDataParallel ddp(model, group, options);
  const float mine = group->rank() == 0 ? 1 : 3;
  model.seen.fill(mine);
  const bool may_leave = options.find_unused_parameters || options.static_graph;
  if (may_leave) model.use = group->rank() == 0 ? std::vector<std::size_t>{0, 1, 3} : std::vector<std::size_t>{0, 3};
  for (int step = 0; step < 3; ++step) {
    for (const Tensor& weight : model.parameters()) clear_grad(weight);
    heads_loss(ddp, mine).backward();
    const bool ignores = !options.ignored_parameters.empty();
    EXPECT_EQ(gradient_of(model.heads[0]), ignores ? mine : 2);
    EXPECT_EQ(gradient_of(model.heads[1]), may_leave ? 0.5F : 2);
    EXPECT_EQ(has_grad(model.heads[2]), !may_leave);
    EXPECT_EQ(gradient_of(model.heads[3]), 2);
    EXPECT_EQ(gradient_of(model.trunk), may_leave ? (3 * 1 + 2 * 3) / 2.0F : 4 * 2);
    EXPECT_EQ(model.seen.item(), options.forward_sync_buffers ? 1 : mine);
  }
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
                           return std::string(choices()[std::get<0>(test.param)].name) + "_" + choices()[std::get<1>(test.param)].name;
                         });

TEST_P(OptionPairs, AverageRightOrAreRefused) {
  DistributedDataParallelOptions options;
  choices()[std::get<0>(GetParam())].choose(options);
  choices()[std::get<1>(GetParam())].choose(options);
  const auto failures = run_ranks(2, "threads", [&options](auto group) { train(group, options); });
  if (options.find_unused_parameters && options.static_graph)
    EXPECT_THAT(failures, Each(HasSubstr("static_graph says that they do not")));
  else
    expect_all_well(failures);
}

}  // namespace
}  // namespace lockstep::testing

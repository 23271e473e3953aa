// ZeroRedundancyOptimizer and StepInBackward with every option and call of DistributedDataParallel: the same bits as
// the plain step, or an error on all ranks that explains why the two cannot be combined; on 2 and 4 ranks, over shared
// memory and TCP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/ddp/step_in_backward.h"
#include "lockstep/reduce/hooks.h"
#include "tests/ddp/ranks.h"
#include "tests/ddp/zero_trainee.h"

namespace lockstep::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr const char* kUnused = "which parameters have no gradient";
constexpr const char* kAfterUpdates = "their result is known when all gradients are ready";

struct PartnerRow {
  const char* option;
  std::function<void(ZeroSettings&)> choose;  // called on each rank, because a hook belongs to one wrapper
  const char* zero_refuses = "";              // "": the two can be combined
  const char* step_in_backward_refuses = "";
};

Work averaged_by_hand(ProcessGroup& group, const GradBucket& bucket) {
  return group.all_reduce_async(bucket.buffer, bucket.count, bucket.dtype, ReduceOp::kAvg);
}

const std::vector<PartnerRow>& partner_rows() {
  static const std::vector<PartnerRow> all = {
      {"bucket_cap_mb", [](auto& s) { s.options.bucket_cap_mb = {25}; }},
      {"forward_sync_buffers", [](auto& s) { s.options.forward_sync_buffers = false; }},
      {"find_unused_parameters", [](auto& s) { s.options.find_unused_parameters = s.leaves_some = true; }, "", kUnused},
      {"static_graph", [](auto& s) { s.options.static_graph = s.leaves_some = true; }, "", kUnused},
      {"ignored_parameters", [](auto& s) { s.options.ignored_parameters = {"a.bias"}; }},
      {"delayed_parameters", [](auto& s) { s.options.delayed_parameters = {"b.weight"}; }},
      {"comm_hook", [](auto& s) { s.options.comm_hook = averaged_by_hand; }},
      {"bf16", [](auto& s) { s.options.comm_hook = hooks::bf16(); }},
      {"max_grad_norm", [](auto& s) { s.options.max_grad_norm = 0.05F; }, "", kAfterUpdates},
      {"on_nonfinite_gradient", [](auto& s) { s.options.on_nonfinite_gradient = OnNonfiniteGradient::kSkipStep; }, "",
       kAfterUpdates},
      {"loss_scaler", [](auto& s) { s.scales = true; }, "", "has a loss_scaler, which skips a step"},
      {"set_weight", [](auto& s) { s.weighs = true; }},
      {"join", [](auto& s) { s.joins = true; }},
      {"no_sync", [](auto& s) { s.gathers = true; }},
      {"begin_epoch", [](auto& s) { s.begins_epochs = true; }},
  };
  return all;
}

enum class Partner { kZero, kStepInBackward };

void train_with_partner(const std::shared_ptr<ProcessGroup>& group, const PartnerRow& row, Partner partner) {
  const auto settings = [&row] {
    ZeroSettings chosen;
    row.choose(chosen);
    return chosen;
  };
  const std::string optimizer = "adamw";
  const bool is_zero = partner == Partner::kZero;
  ZeroSettings stepped = settings();
  stepped.steps_in_backward = !is_zero;
  ZeroTrainee other(group, optimizer, is_zero, 13, stepped);
  std::optional<StepInBackward> step;
  if (!is_zero) step.emplace(other.ddp, *other.optimizer);
  ZeroTrainee plain(group, optimizer, false, 13, settings());
  const std::string before = plain.bits();
  plain.run(6);
  other.run(6);
  EXPECT_NE(plain.bits(), before);
  EXPECT_EQ(other.bits(), plain.bits());
  check_replicas_equal(*group, other.net.named_parameters(), "weights");
}

using PartnerCell = std::tuple<std::size_t, Partner, int, const char*>;

class PartnerCells : public ::testing::TestWithParam<PartnerCell> {};
std::string cell_name(const ::testing::TestParamInfo<PartnerCell>& test) {
  const auto& [row, partner, ranks, wire] = test.param;
  return std::string(partner_rows()[row].option) + (partner == Partner::kZero ? "_zero_" : "_step_in_backward_") +
         wire + std::to_string(ranks);
}

INSTANTIATE_TEST_SUITE_P(All, PartnerCells,
                         ::testing::Combine(::testing::Range(std::size_t{0}, partner_rows().size()),
                                            ::testing::Values(Partner::kZero, Partner::kStepInBackward),
                                            ::testing::Values(2, 4), ::testing::Values("shm", "tcp")),
                         cell_name);

TEST_P(PartnerCells, HasThePlainWeightsOrIsRefused) {
  const auto& [index, partner, ranks, wire] = GetParam();
  const PartnerRow& row = partner_rows()[index];
  const auto failures =
      run_ranks(ranks, wire, [&row, partner = partner](auto group) { train_with_partner(group, row, partner); });
  const std::string refusal = partner == Partner::kZero ? row.zero_refuses : row.step_in_backward_refuses;
  if (refusal.empty())
    expect_all_well(failures);
  else
    EXPECT_THAT(failures, Each(HasSubstr(refusal)));
}

}  // namespace
}  // namespace lockstep::testing

// ZeroRedundancyOptimizer with Muon, which needs whole matrices: the bits of the plain step, and a share of the state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>

#include "lockstep/reduce/hooks.h"
#include "tests/ddp/muon_trainee.h"
#include "tests/ddp/ranks.h"

namespace lockstep::testing {
namespace {

constexpr int kMuonSteps = 6;

struct MuonCase {
  int ranks;
  std::string transport;
};

class ZeroMuon : public ::testing::TestWithParam<MuonCase> {};
INSTANTIATE_TEST_SUITE_P(All, ZeroMuon,
                         ::testing::Values(MuonCase{1, "threads"}, MuonCase{2, "threads"}, MuonCase{3, "shm"},
                                           MuonCase{4, "tcp"}, MuonCase{7, "threads"}),
                         [](const auto& test) {
                           return std::to_string(test.param.ranks) + "_" + test.param.transport;
                         });

TEST_P(ZeroMuon, HasTheBitsOfThePlainStepAndAShareOfTheState) {
  const auto& [ranks, transport] = GetParam();
  expect_all_well(run_ranks(ranks, transport, [](auto group) {
    MuonTrainee plain(group, false, true), zero(group, true, true);
    plain.run(kMuonSteps);
    zero.run(kMuonSteps);
    EXPECT_EQ(zero.bits(), plain.bits());
    check_replicas_equal(*group, zero.net.named_parameters(), "weights");
    std::int64_t own = static_cast<std::int64_t>(zero.zero->state_bytes()), all = own;
    group->all_reduce(std::span(&all, 1));
    EXPECT_EQ(all, std::int64_t{sizeof(float)} * (13 * 5 + 13 * 13 + 7 * 13 + 3 * 7)) << "each matrix has one owner";
    if (group->world_size() > 1) {
      EXPECT_LE(own, all * 6 / 10) << "one rank has the largest matrix, and no other";
    }
    EXPECT_EQ(zero.muon->slice_holders(), group->world_size());
  }));
}

TEST(ZeroMuonOptions, GiveTheBitsOfThePlainStep) {
  struct Choice {
    std::function<void(DistributedDataParallelOptions&)> choose;
    bool leaves_b = false, gathers = false;
  };
  const std::map<std::string, Choice> choices = {
      {"find_unused_parameters", {[](auto& o) { o.find_unused_parameters = true; }, true}},
      {"one bucket", {[](auto& o) { o.bucket_cap_mb = {25}; }}},
      {"no_sync", {[](auto&) {}, false, true}},
      {"max_grad_norm", {[](auto& o) { o.max_grad_norm = 0.05F; }}},
      {"comm_hook", {[](auto& o) { o.comm_hook = hooks::bf16(); }}},
  };
  for (const auto& [name, choice] : choices) {
    SCOPED_TRACE(name);
    const auto options = [&choice = choice] {  // a hook of its own for each wrapper
      DistributedDataParallelOptions chosen = {.bucket_cap_mb = {in_mib(64), in_mib(512)}};
      choice.choose(chosen);
      return chosen;
    };
    expect_all_well(run_ranks(2, "threads", [&, &choice = choice](auto group) {
      MuonTrainee plain(group, false, true, options()), zero(group, true, true, options());
      for (MuonTrainee* const each : {&plain, &zero}) {
        each->net.leaves_b = choice.leaves_b;
        each->gathers = choice.gathers;
        each->run(kMuonSteps);
      }
      EXPECT_EQ(zero.bits(), plain.bits());
    }));
  }
}

// In join() the last rank has two steps fewer.
TEST(ZeroMuonOptions, JoinTakesTheStepsOfAllRanks) {
  expect_all_well(run_ranks(2, "threads", [](auto group) {
    MuonTrainee plain(group, false, true), zero(group, true, true);
    for (MuonTrainee* const each : {&plain, &zero})
      each->ddp.join([&] { each->run(group->rank() == 0 ? kMuonSteps : kMuonSteps - 2); }, {.after_step = [&] {
                       each->muon->set_lr(each->muon->lr() * 0.97F);
                       each->make_steps();
                     }});
    EXPECT_EQ(zero.bits(), plain.bits());
  }));
}

// Averages are whole on every rank: they can be read and clipped.
TEST(ZeroMuonOptions, GradientsAreAsWithoutIt) {
  expect_all_well(run_ranks(2, "threads", [](auto group) {
    MuonTrainee plain(group, false, false), zero(group, true, false);
    plain.backward(0);
    zero.backward(0);
    const std::vector<NamedTensor> expected = plain.ddp.parameters(), found = zero.ddp.parameters();
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_EQ(hash_of({{"g", grad(found[i].tensor)}}), hash_of({{"g", grad(expected[i].tensor)}}));
  }));
}

TEST(ZeroMuonMistakes, AStepOfAnUnreducedGradientThrows) {
  EXPECT_THAT(run_ranks(2, "threads",
                        [](auto group) {
                          MuonTrainee zero(group, true, false);
                          const auto local = zero.ddp.no_sync();
                          zero.backward(0);
                          zero.muon->step();
                        }),
              ::testing::Each(::testing::HasSubstr("from a backward under no_sync()")));
}

}  // namespace
}  // namespace lockstep::testing

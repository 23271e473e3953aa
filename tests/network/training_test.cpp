// DDP between machines, ranks as processes that meet as they would anywhere: after 50 steps over a slow, lossy or disorderly network all
// ranks have the weights of a run on one machine, to the bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>

#include "tests/faults/hand_job.h"
#include "tests/faults/node_job.h"
#include "tests/network/network_lab.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr const char* kSteps = "steps=50";
constexpr const char* kMetrics = "metrics=5000";

std::string weights_in(const std::string& output) {
  std::smatch found;
  return std::regex_search(output, found, std::regex("weights ([0-9a-f]{64})")) ? found[1].str() : "none in: " + output;
}

// The weights that all ranks agree on, and that they say which wire they used.
std::string common_weights(HandJob& job, int ranks, const std::string& transport) {
  std::set<std::string> weights;
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(job[rank].wait(60s), 0) << job[rank].errors();
    EXPECT_THAT(job[rank].output(), HasSubstr("did 50 steps over " + transport));
    weights.insert(weights_in(job[rank].output()));
  }
  EXPECT_EQ(weights.size(), 1u) << "replicas differ";
  return *weights.begin();
}

std::string weights_on_one_machine(int ranks) {
  static std::map<int, std::string> known;
  std::string& weights = known[ranks];
  if (!weights.empty()) return weights;
  HandJob job(ranks, {{"LOCKSTEP_TRANSPORT", "shm"}});
  for (int rank = 0; rank < ranks; ++rank) job.start_command(rank, {TRAINING_RANK, kSteps, kMetrics});
  return weights = common_weights(job, ranks, "shm");
}

std::string weights_on_machines(const NetworkLab& lab, int ranks_each, bool ipv6) {
  const int ranks = lab.machines() * ranks_each;
  HandJob job(ranks, {{"LOCKSTEP_TRANSPORT", "tcp"},
                      {"LOCKSTEP_TOKEN", "the lab's token"},
                      {"MASTER_ADDR", ipv6 ? NetworkLab::address6(0) : NetworkLab::address(0)}});
  for (int rank = 0; rank < ranks; ++rank)
    job.start_command(rank, {TRAINING_RANK, kSteps, kMetrics},
                      {{"LOCAL_RANK", std::to_string(rank % ranks_each)}, {"LOCAL_WORLD_SIZE", std::to_string(ranks_each)}},
                      lab.network(rank / ranks_each));
  return common_weights(job, ranks, "tcp");
}

class TrainingBetweenMachines : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Machines, TrainingBetweenMachines, ::testing::Values(2, 3),
                         [](const auto& tested) { return std::to_string(tested.param); });

TEST_P(TrainingBetweenMachines, ASlowLinkGivesTheSameWeights) {
  if (const std::string obstacle = NetworkLab::obstacle(Link::kSwitch); !obstacle.empty()) GTEST_SKIP() << obstacle;
  const NetworkLab lab(GetParam());
  for (int machine = 0; machine < GetParam(); ++machine) lab.limit_rate(machine, "200mbit");
  EXPECT_EQ(weights_on_machines(lab, 2, false), weights_on_one_machine(2 * GetParam()));
}

TEST_P(TrainingBetweenMachines, DelayLossAndDisorderGiveTheSameWeights) {
  if (const std::string obstacle = NetworkLab::obstacle(Link::kRelay); !obstacle.empty()) GTEST_SKIP() << obstacle;
  NetworkLab lab(GetParam(), Link::kRelay);
  lab.relay().set({.delay = 500us, .loss = 0.005, .overtaken = 0.03, .overtaken_by = 1ms});
  EXPECT_EQ(weights_on_machines(lab, 2, NetworkLab::has_ipv6()), weights_on_one_machine(2 * GetParam()));
  EXPECT_GT(lab.relay().lost(), 0u);
  EXPECT_GT(lab.relay().delayed_behind_others(), 0u);
}

// As people start it: a lockrun on every machine.
class Nodes : public ::testing::TestWithParam<std::vector<int>> {};
INSTANTIATE_TEST_SUITE_P(OfRanks, Nodes, ::testing::Values(std::vector<int>{2, 2}, std::vector<int>{2, 1, 3}));

TEST_P(Nodes, LockrunsOnMachinesGiveTheSameWeights) {
  if (const std::string obstacle = NetworkLab::obstacle(Link::kSwitch); !obstacle.empty()) GTEST_SKIP() << obstacle;
  const NetworkLab lab(static_cast<int>(GetParam().size()));
  for (const bool ipv6 : {false, true}) {
    if (ipv6 && !NetworkLab::has_ipv6()) continue;
    NodeJob job(GetParam(), {TRAINING_RANK, kSteps, kMetrics}, {{"LOCKSTEP_TRANSPORT", "tcp"}}, &lab, ipv6);
    int ranks = 0;
    std::set<std::string> weights;
    for (int node = 0; node < job.nodes(); ++node) {
      EXPECT_EQ(job[node].wait(60s), 0) << job[node].errors();
      for (int i = 0; i < GetParam()[static_cast<std::size_t>(node)]; ++i, ++ranks)
        EXPECT_THAT(job[node].output(), HasSubstr("[" + std::to_string(ranks) + "] rank " + std::to_string(ranks) + " of "));
      weights.insert(weights_in(job[node].output()));
    }
    EXPECT_THAT(weights, ::testing::ElementsAre(weights_on_one_machine(ranks)));
  }
}

}  // namespace
}  // namespace lockstep::testing

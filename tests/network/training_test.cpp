// DDP between machines, with ranks as processes that meet as usual: after 50 steps over a slow, lossy or reordering
// network all ranks have exactly the weights of a run on one machine.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <thread>
#include <tuple>

#include "tests/faults/hand_job.h"
#include "tests/faults/node_job.h"
#include "tests/faults/private_mounts.h"
#include "tests/network/network_lab.h"
#include "tests/network/stream_relay.h"
#include "tests/support/pattern.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr const char* kSteps = "steps=50";
constexpr const char* kMetrics = "metrics=5000";

std::string weights_in(const std::string& output) {
  const auto found = find_match(output, "weights ([0-9a-f]{64})");
  return found.empty() ? "none in: " + output : found[1];
}

// Returns the weights if all ranks have the same, and checks the transport that they report.
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

using Layout = std::vector<int>;  // number of ranks by machine

int ranks_of(const Layout& layout) { return std::accumulate(layout.begin(), layout.end(), 0); }

// The weights of a run with that layout on one machine. With TCP alone the order of sums is rank order, as in shared
// memory.
std::string expected_weights(const Layout& layout, const std::string& transport) {
  static std::map<std::string, std::string> known;
  std::string& weights = known[transport + ::testing::PrintToString(layout)];
  if (!weights.empty()) return weights;
  const std::string wire = transport == "tcp" ? "shm" : transport;
  HandJob job(ranks_of(layout), {{"LOCKSTEP_TRANSPORT", wire}});
  for (int machine = 0, rank = 0; machine < static_cast<int>(layout.size()); ++machine)
    for (int i = 0; i < layout[static_cast<std::size_t>(machine)]; ++i, ++rank)
      job.start_command(rank, {TRAINING_RANK, kSteps, kMetrics},
                        wire == "shm" ? Environment{} : Environment{{"LOCKSTEP_NODE", std::to_string(machine)}});
  return weights = common_weights(job, ranks_of(layout), wire);
}

std::string weights_on_machines(const NetworkLab& lab, const std::string& transport, bool ipv6) {
  const int ranks_each = 2, ranks = lab.machines() * ranks_each;
  HandJob job(ranks, {{"LOCKSTEP_TRANSPORT", transport},
                      {"LOCKSTEP_TOKEN", "the lab's token"},
                      {"MASTER_ADDR", ipv6 ? NetworkLab::address6(0) : NetworkLab::address(0)}});
  for (int rank = 0; rank < ranks; ++rank)
    job.start_command(
        rank, {TRAINING_RANK, kSteps, kMetrics},
        {{"LOCAL_RANK", std::to_string(rank % ranks_each)}, {"LOCAL_WORLD_SIZE", std::to_string(ranks_each)}},
        lab.network(rank / ranks_each));
  return common_weights(job, ranks, transport);
}

class TrainingBetweenMachines : public ::testing::TestWithParam<std::tuple<int, const char*>> {
 protected:
  static int machines() { return std::get<0>(GetParam()); }
  static std::string transport() { return std::get<1>(GetParam()); }
  static Layout layout() { return Layout(static_cast<std::size_t>(machines()), 2); }
};
INSTANTIATE_TEST_SUITE_P(Machines, TrainingBetweenMachines,
                         ::testing::Combine(::testing::Values(2, 3), ::testing::Values("tcp", "hierarchical")),
                         [](const auto& tested) {
                           return std::to_string(std::get<0>(tested.param)) + "_" + std::get<1>(tested.param);
                         });

TEST_P(TrainingBetweenMachines, ASlowLinkGivesTheSameWeights) {
  if (const std::string obstacle = NetworkLab::obstacle_to_limits(); !obstacle.empty()) GTEST_SKIP() << obstacle;
  const NetworkLab lab(machines());
  for (int machine = 0; machine < machines(); ++machine) lab.limit_rate(machine, "200mbit");
  EXPECT_EQ(weights_on_machines(lab, transport(), false), expected_weights(layout(), transport()));
}

TEST_P(TrainingBetweenMachines, DelayLossAndDisorderGiveTheSameWeights) {
  if (const std::string obstacle = NetworkLab::obstacle(Link::kRelay); !obstacle.empty()) GTEST_SKIP() << obstacle;
  NetworkLab lab(machines(), Link::kRelay);
  lab.relay().set({.delay = 500us, .loss = 0.005, .overtaken = 0.03, .overtaken_by = 1ms});
  EXPECT_EQ(weights_on_machines(lab, transport(), NetworkLab::has_ipv6()), expected_weights(layout(), transport()));
  EXPECT_GT(lab.relay().lost(), 0u);
  EXPECT_GT(lab.relay().delayed_behind_others(), 0u);
}

// As users start it: a lockrun on every machine. By default, a group over several machines uses both transports.
class Nodes : public ::testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(OfRanks, Nodes, ::testing::Values(Layout{2, 2}, Layout{2, 1, 3}));

TEST_P(Nodes, LockrunsOnMachinesGiveTheSameWeights) {
  if (const std::string obstacle = NetworkLab::obstacle(Link::kSwitch); !obstacle.empty()) GTEST_SKIP() << obstacle;
  const NetworkLab lab(static_cast<int>(GetParam().size()));
  for (const bool ipv6 : {false, true}) {
    if (ipv6 && !NetworkLab::has_ipv6()) continue;
    NodeJob job(GetParam(), {TRAINING_RANK, kSteps, kMetrics}, {}, &lab, ipv6 ? NetworkLab::address6(0) : "");
    std::set<std::string> weights;
    for (int node = 0, rank = 0; node < job.nodes(); ++node) {
      EXPECT_EQ(job[node].wait(60s), 0) << job[node].errors();
      for (int i = 0; i < GetParam()[static_cast<std::size_t>(node)]; ++i, ++rank)
        EXPECT_THAT(job[node].output(), HasSubstr(fmt::format("[{0}] rank {0} of {1} did 50 steps over hierarchical",
                                                              rank, ranks_of(GetParam()))));
      weights.insert(weights_in(job[node].output()));
    }
    EXPECT_THAT(weights, ::testing::ElementsAre(expected_weights(GetParam(), "hierarchical")));
  }
}

// Slow enough that the network can fail in the middle.
constexpr const char* kSlowly = "pause_ms=30";

TEST(Outage, OfASecondIsSurvived) {
  if (const std::string obstacle = NetworkLab::obstacle(); !obstacle.empty()) GTEST_SKIP() << obstacle;
  NetworkLab lab(2);
  NodeJob job({2, 2}, {TRAINING_RANK, kSteps, kMetrics, kSlowly}, {}, &lab);
  ASSERT_TRUE(job.is_training()) << job[0].errors() << job[1].errors();
  lab.cut(1);
  std::this_thread::sleep_for(1s);
  lab.mend(1);
  for (const int node : {0, 1}) EXPECT_EQ(job[node].wait(60s), 0) << job[node].errors();
  EXPECT_EQ(weights_in(job[1].output()), weights_in(job[0].output()));
}

// As in Kubernetes: the other ranks can resolve rank 0's name only once its pod runs.
TEST(LateName, IsAskedForUntilItIsKnown) {
  if (const std::string obstacle = NetworkLab::obstacle(); !obstacle.empty()) GTEST_SKIP() << obstacle;
  if (!obstacle_to_private_mounts().empty()) GTEST_SKIP() << obstacle_to_private_mounts();
  const NetworkLab lab(2);
  const std::string path = ::testing::TempDir() + "lockstep-hosts-" + std::to_string(::getpid());
  std::ofstream(path) << "127.0.0.1 localhost\n";
  const BoundFile hosts(path, "/etc/hosts");
  NodeJob job({1, 2}, {TRAINING_RANK, kSteps, kMetrics}, {}, &lab, "trainer-0.lockstep.test");
  std::this_thread::sleep_for(1s);
  EXPECT_FALSE(job[0].has_ended()) << job[0].errors();
  EXPECT_FALSE(job[1].has_ended()) << job[1].errors();
  std::ofstream(path, std::ios::app) << NetworkLab::address(0) << " trainer-0.lockstep.test\n";
  for (const int node : {0, 1}) EXPECT_EQ(job[node].wait(60s), 0) << job[node].errors();
  std::filesystem::remove(path);
}

TEST(Store, UnderstandsWhatComesByteByByte) {
  StreamRelay relay;
  relay.write_at_most(1);
  HandJob job(3, {{"LOCKSTEP_TOKEN", "a token of this test"}});
  const Endpoint front = relay.front_of({"127.0.0.1", static_cast<std::uint16_t>(std::stoi(job.port()))}, "127.0.0.1");
  job.start_command(0, {TRAINING_RANK, "steps=3"});
  for (const int rank : {1, 2})
    job.start_command(rank, {TRAINING_RANK, "steps=3"}, {{"MASTER_PORT", std::to_string(front.port)}});
  for (const int rank : {0, 1, 2}) EXPECT_EQ(job[rank].wait(60s), 0) << job[rank].errors();
  EXPECT_GT(relay.passed(), 500u);
}

}  // namespace
}  // namespace lockstep::testing

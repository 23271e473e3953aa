// Which ranks share memory: by their node, and by the network that they reach.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/cases.h"
#include "tests/conformance/forked_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(NodeRendezvousTest, RanksOfUnlikeNodesShareNoMemory) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"aaa", "shm"}, {"abc", "tcp"}, {"aba", "hierarchical"}};
  for (const auto& [nodes, transport] : cases)
    run_threads({.wire = Wire::kNodes, .ranks = 3, .nodes = nodes}, [&transport = transport](Rank& rank) {
      EXPECT_EQ(rank.backend().transport(), transport);
      float value = 1;
      rank.all_reduce(&value, 1);
      EXPECT_EQ(value, 3.0f);
    });
}

TEST(NodeRendezvousTest, TheHierarchicalTransportIsAnErrorWhereItHasNoSense) {
  for (const auto& [nodes, why] :
       std::vector<std::pair<std::string, std::string>>{{"aa", "all ranks share memory"}, {"ab", "no two ranks"}})
    for (const Outcome& outcome : outcomes_of_threads(
             {.wire = Wire::kNodes, .ranks = 2, .nodes = nodes, .transport = "hierarchical"}, [](Rank&) {})) {
      EXPECT_EQ(outcome.kind, "error") << outcome.text;
      EXPECT_THAT(outcome.text, AllOf(HasSubstr("transport hierarchical was requested, but "), HasSubstr(why)));
    }
}

// A rank that cannot reach the others' sockets is a node of its own, and the rest still share memory.
TEST(NodeRendezvousTest, ARankInAnotherNetworkNamespaceIsAnotherNode) {
  const auto reports = run_processes(
      {.wire = Wire::kNodes, .ranks = 3, .store_timeout = std::chrono::seconds(2), .nodes = "aaa"},
      [](Rank&, RankReport&) {}, [](int rank) { return rank != 2 || enter_own_network(); });
  if (reports[2].exit_code == kSkipExitCode) GTEST_SKIP() << "this process may not make a network namespace";
  // It also has no network, so that the ranks cannot join; but they have found out which of them share memory.
  for (const RankReport& report : reports) EXPECT_EQ(report.kind(), "rendezvous") << report.text();
}

}  // namespace
}  // namespace lockstep::testing

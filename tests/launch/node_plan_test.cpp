// Several nodes without processes: which may join, which ranks they have, which report decides for the job, and the
// messages between them.
#include "src/launch/nodes/node_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "lockstep/core/error.h"
#include "src/launch/nodes/node_channel.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr milliseconds kWait(3000);

NodeFacts facts(int node, int nodes, int ranks = 2) {
  return {node, nodes, ranks, "host" + std::to_string(node), 100 + node};
}
Clock::time_point at(int ms) { return Clock::time_point() + milliseconds(ms); }
NodeReport report(NodeReport::Kind kind, int node, int exit_code, int ms) {
  return {kind, node, exit_code, SIGTERM, "cause\n", at(ms)};
}

TEST(Roster, TakesEveryNodeOnceInAnyOrder) {
  Roster roster(facts(0, 3));
  EXPECT_THAT(roster.missing(), ElementsAre(1, 2));
  EXPECT_EQ(roster.admit(facts(2, 3)), "");
  EXPECT_THAT(roster.missing(), ElementsAre(1));
  EXPECT_EQ(roster.admit(facts(1, 3, 5)), "");
  EXPECT_TRUE(roster.missing().empty());
  EXPECT_THAT(roster.nodes(), ElementsAre(facts(0, 3), facts(1, 3, 5), facts(2, 3)));
}

TEST(Roster, NamesMistakes) {
  Roster roster(facts(0, 3));
  EXPECT_EQ(roster.admit(facts(1, 3)), "");
  NodeFacts duplicate = facts(1, 3);
  duplicate.pid = 777;
  EXPECT_THAT(roster.admit(duplicate),
              HasSubstr("--node-rank 1 is taken: lockrun 101 on host host1 joined before lockrun 777 on host host1"));
  EXPECT_THAT(roster.admit(facts(0, 3)), HasSubstr("--node-rank 0 is taken"));
  EXPECT_THAT(roster.admit(facts(2, 4)),
              HasSubstr("node 2 on host host2 was started with --nnodes 4, node 0 on host host0 with --nnodes 3"));
  EXPECT_THAT(roster.admit(facts(3, 3)), HasSubstr("node 3 does not exist among 3 nodes"));
  NodeFacts restarting = facts(2, 3);
  restarting.max_restarts = 5;
  EXPECT_THAT(roster.admit(restarting), HasSubstr("was started with --max-restarts 5, node 0 on host host0 with "
                                                  "--max-restarts 0: all restart together"));
  for (const int ranks : {4095, 2'147'483'647})
    EXPECT_THAT(roster.admit(facts(2, 3, ranks)),
                AllOf(HasSubstr("node 2 on host host2 with " + std::to_string(ranks) + " ranks"),
                      HasSubstr("4096 are the most")));
  EXPECT_THAT(roster.missing(), ElementsAre(2)) << "the refused are not in";
}

TEST(Roster, WhoLeavesMayComeAgain) {
  Roster roster(facts(0, 2));
  EXPECT_EQ(roster.admit(facts(1, 2)), "");
  roster.forget(1);
  EXPECT_THAT(roster.missing(), ElementsAre(1));
  EXPECT_EQ(roster.admit(facts(1, 2, 7)), "");
}

TEST(NodePlace, RanksAreCountedThroughUnequalNodes) {
  const std::vector<NodeFacts> nodes = {facts(0, 3, 4), facts(1, 3, 1), facts(2, 3, 3)};
  const int first[] = {0, 4, 5};
  for (int node = 0; node < 3; ++node) {
    EXPECT_EQ(place_of(nodes, node).first_rank, first[node]);
    EXPECT_EQ(place_of(nodes, node).world_size, 8);
  }
}

TEST(ListNodes, ShortAndLong) {
  EXPECT_EQ(list_nodes({2}), "node 2");
  EXPECT_EQ(list_nodes({1, 2}), "nodes 1, 2");
  std::vector<int> many(20);
  for (int i = 0; i < 20; ++i) many[static_cast<std::size_t>(i)] = i;
  EXPECT_THAT(list_nodes(many), HasSubstr("14, 15 and 4 more"));
}

TEST(DecideForNodes, AllMustFinish) {
  EXPECT_FALSE(decide_for_nodes({}, 2, at(0), kWait));
  EXPECT_FALSE(decide_for_nodes({report(NodeReport::Kind::kFinished, 1, 0, 1)}, 2, at(99999), kWait));
  const auto decision = decide_for_nodes(
      {report(NodeReport::Kind::kFinished, 1, 0, 1), report(NodeReport::Kind::kFinished, 0, 0, 2)}, 2, at(2), kWait);
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->kind, NodeReport::Kind::kFinished);
  EXPECT_EQ(decision->exit_code, 0);
}

TEST(DecideForNodes, TheFirstCauseCountsAtOnce) {
  for (const NodeReport::Kind kind :
       {NodeReport::Kind::kFailed, NodeReport::Kind::kInterrupted, NodeReport::Kind::kLost}) {
    const auto decision = decide_for_nodes({report(NodeReport::Kind::kFinished, 0, 0, 1), report(kind, 2, 7, 5),
                                            report(NodeReport::Kind::kFailed, 1, 3, 6)},
                                           4, at(6), kWait);
    ASSERT_TRUE(decision);
    EXPECT_EQ(decision->kind, kind);
    EXPECT_EQ(decision->node, 2);
    EXPECT_EQ(decision->exit_code, 7);
  }
}

TEST(DecideForNodes, AConsequenceWaitsForItsCauseOnAnotherNode) {
  std::vector<NodeReport> reports = {report(NodeReport::Kind::kConsequence, 0, 75, 100),
                                     report(NodeReport::Kind::kConsequence, 2, 75, 200)};
  EXPECT_FALSE(decide_for_nodes(reports, 4, at(3099), kWait)) << "counted from the first";
  auto decision = decide_for_nodes(reports, 4, at(3100), kWait);
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->node, 0);
  EXPECT_EQ(decide_for_nodes(reports, 2, at(200), kWait)->node, 0) << "nobody is left who could name a cause";
  reports.push_back(report(NodeReport::Kind::kLost, 3, 75, 3000));
  decision = decide_for_nodes(reports, 4, at(3000), kWait);
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->node, 3);
}

TEST(Reports, TheFirstOfANodeStandsButAFinishedOneMayBeInterrupted) {
  std::vector<NodeReport> reports;
  enter(reports, report(NodeReport::Kind::kFinished, 1, 0, 1));
  enter(reports, report(NodeReport::Kind::kLost, 1, 75, 2));
  ASSERT_EQ(reports.size(), 1u) << "who has finished may go";
  EXPECT_EQ(reports[0].kind, NodeReport::Kind::kFinished);
  enter(reports, report(NodeReport::Kind::kFailed, 0, 3, 3));
  enter(reports, report(NodeReport::Kind::kInterrupted, 0, 130, 4));
  enter(reports, report(NodeReport::Kind::kInterrupted, 1, 130, 5));
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0].kind, NodeReport::Kind::kInterrupted);
  EXPECT_EQ(reports[1].kind, NodeReport::Kind::kFailed);
}

TEST(Decision, IsToldWithTheNodeThatHasTheLines) {
  EXPECT_EQ(
      describe_decision({NodeReport::Kind::kFailed, 1, 3, SIGTERM, "lockrun: rank 2 exited\n", {}}, facts(1, 2)),
      "lockrun: rank 2 exited\nlockrun: its last lines are in the output of the lockrun of node 1 on host host1\n");
  EXPECT_EQ(describe_decision({NodeReport::Kind::kInterrupted, 1, 130, SIGINT, "lockrun: SIGINT\n", {}}, facts(1, 2)),
            "lockrun: SIGINT\n");
  const NodeReport loss = loss_of(facts(1, 2), at(5));
  EXPECT_EQ(loss.exit_code, kPeerLostExitCode);
  EXPECT_THAT(describe_decision(loss, facts(1, 2)),
              HasSubstr("node 1 on host host1 is gone: the connection to its lockrun (pid 101)"));
  const NodeReport silence = silence_of(facts(0, 2), std::chrono::seconds(15));
  EXPECT_EQ(silence.exit_code, kPeerLostExitCode);
  EXPECT_EQ(silence.cause,
            "lockrun: node 0 on host host0 does not answer: its lockrun (pid 100) has decided nothing for 15 s; is it "
            "stopped?\n");
  const NodeReport stall = stall_of(facts(1, 2), std::chrono::milliseconds(2500), at(5));
  EXPECT_EQ(stall.exit_code, kPeerLostExitCode);
  EXPECT_THAT(stall.cause,
              HasSubstr("node 1 on host host1 does not answer: its lockrun (pid 101) has sent no heartbeat for 2.5 s"));
}

TEST(NodeMessage, ComesThroughAsItWas) {
  NodeMessage message;
  message.kind = NodeMessage::Kind::kEnd;
  message.why = "nodes 1, 2";
  message.nodes = {facts(0, 2, 3), facts(1, 2)};
  message.report = {NodeReport::Kind::kLost, 1, 137, SIGINT, "two\nlines \"quoted\"\n", {}};
  message.report.failure = FirstFailure{.node = 1, .rank = 3, .task = "ps:0", .how = "how", .exception = "text"};
  message.report.step = 1234567890123;
  message.report.restarts = true;
  message.report.why_no_restart = "why";
  message.report.pause_s = 8;
  message.attempt = 4;
  message.attempt_id = "id";
  const auto read = decode(encode(message));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->kind, message.kind);
  EXPECT_EQ(read->why, message.why);
  EXPECT_EQ(read->nodes, message.nodes);
  EXPECT_EQ(read->report.kind, message.report.kind);
  EXPECT_EQ(read->report.node, 1);
  EXPECT_EQ(read->report.exit_code, 137);
  EXPECT_EQ(read->report.signal, SIGINT);
  EXPECT_EQ(read->report.cause, message.report.cause);
  ASSERT_TRUE(read->report.failure);
  EXPECT_EQ(read->report.failure->rank, 3);
  EXPECT_EQ(read->report.failure->task, "ps:0");
  EXPECT_EQ(read->report.failure->how, "how");
  EXPECT_EQ(read->report.failure->exception, "text");
  EXPECT_EQ(read->report.step, message.report.step);
  EXPECT_TRUE(read->report.restarts);
  EXPECT_EQ(read->report.why_no_restart, "why");
  EXPECT_EQ(read->report.pause_s, 8);
  EXPECT_EQ(read->attempt, 4);
  EXPECT_EQ(read->attempt_id, "id");
}

TEST(NodeMessage, WhatIsNoneIsRefused) {
  const std::string good = encode({});
  EXPECT_TRUE(decode(good));
  for (const std::string& bad :
       {std::string(), std::string("{}"), std::string("[1]"), std::string("\xff\xfe"), good.substr(1),
        std::string(
            R"({"kind":99,"why":"","nodes":[],"report":{"kind":0,"node":0,"exit_code":0,"signal":0,"cause":""}})"),
        std::string(
            R"({"kind":-1,"why":"","nodes":[],"report":{"kind":0,"node":0,"exit_code":0,"signal":0,"cause":""}})"),
        std::string(R"({"kind":0,"why":"","nodes":[{"node":"x"}],"report":{}})")})
    EXPECT_FALSE(decode(bad)) << bad;
}

}  // namespace
}  // namespace lockstep::launch

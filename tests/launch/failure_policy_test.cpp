#include "src/launch/failure_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "lockstep/core/error.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using Action = Verdict::Action;

constexpr milliseconds kWait(500);

Clock::time_point at(int ms) { return Clock::time_point() + milliseconds(ms); }
RankExit code(int rank, int value, int ms) { return {rank, 1000 + rank, false, value, false, at(ms)}; }
RankExit signal(int rank, int value, int ms) { return {rank, 1000 + rank, true, value, false, at(ms)}; }

TEST(FailurePolicy, GoodExitsNeverEndTheJob) {
  EXPECT_EQ(judge({}, 3, at(0), kWait).action, Action::kContinue);
  EXPECT_EQ(judge({code(1, 0, 1)}, 3, at(9999), kWait).action, Action::kContinue);
  EXPECT_EQ(judge({code(1, 0, 1), code(0, 0, 2), code(2, 0, 3)}, 3, at(4), kWait).action, Action::kContinue);
}

TEST(FailurePolicy, TheFirstFailureIsTheCauseAtOnce) {
  const auto verdict = judge({code(2, 0, 1), signal(1, SIGSEGV, 5), code(0, 3, 6)}, 4, at(6), kWait);
  EXPECT_EQ(verdict.action, Action::kEndJob);
  EXPECT_EQ(verdict.cause, 1u);
  EXPECT_FALSE(verdict.only_consequences);
}

TEST(FailurePolicy, AConsequenceWaitsForItsCause) {
  std::vector<RankExit> exits = {code(0, kPeerLostExitCode, 100), code(2, kPeerLostExitCode, 300)};
  auto verdict = judge(exits, 4, at(599), kWait);
  EXPECT_EQ(verdict.action, Action::kWaitForCause);
  EXPECT_EQ(verdict.until, at(600)) << "counted from the first of them";
  exits.push_back(code(3, 9, 599));
  verdict = judge(exits, 4, at(599), kWait);
  EXPECT_EQ(verdict.action, Action::kEndJob);
  EXPECT_EQ(verdict.cause, 2u);
  EXPECT_FALSE(verdict.only_consequences);
}

TEST(FailurePolicy, OnlyConsequencesEndTheJobWhenTheWaitIsOverOrNobodyIsLeft) {
  const std::vector<RankExit> exits = {code(1, 0, 50), code(0, kPeerLostExitCode, 100)};
  auto verdict = judge(exits, 3, at(600), kWait);
  EXPECT_EQ(verdict.action, Action::kEndJob);
  EXPECT_EQ(verdict.cause, 1u);
  EXPECT_TRUE(verdict.only_consequences);
  verdict = judge(exits, 2, at(100), kWait);
  EXPECT_EQ(verdict.action, Action::kEndJob);
  EXPECT_TRUE(verdict.only_consequences);
}

TEST(FailurePolicy, ASignalOfThatNumberIsNoConsequence) {
  EXPECT_TRUE(code(0, kPeerLostExitCode, 0).is_consequence());
  EXPECT_FALSE(signal(0, kPeerLostExitCode, 0).is_consequence());
  EXPECT_EQ(signal(0, SIGKILL, 0).exit_code(), 137);
  EXPECT_EQ(code(0, 3, 0).exit_code(), 3);
}

TEST(FailureSummary, NamesRankProcessCauseAndLastLines) {
  const std::vector<RankExit> exits = {signal(1, SIGSEGV, 5)};
  const auto text = failure_cause(exits, judge(exits, 2, at(6), kWait)) + failure_details({"first", "second"});
  EXPECT_THAT(text, HasSubstr("rank 1 (pid 1001) was killed by signal 11 (SIGSEGV: Segmentation fault)\n"));
  EXPECT_THAT(text, HasSubstr("    first\n    second\n"));
  EXPECT_EQ(failure_cause({code(0, 3, 0)}, {Action::kEndJob}), "lockrun: rank 0 (pid 1000) exited with code 3\n");
  EXPECT_EQ(failure_cause({code(0, 3, 0)}, {Action::kEndJob}, "node 2 on host b"),
            "lockrun: rank 0 (pid 1000, node 2 on host b) exited with code 3\n");
  EXPECT_THAT(failure_details({}), HasSubstr("nothing to stderr"));
  RankExit server = code(4, 3, 0);
  server.task = "ps:0";
  EXPECT_EQ(failure_cause({server}, {Action::kEndJob}), "lockrun: rank 4 (ps:0, pid 1004) exited with code 3\n");
  EXPECT_EQ(failure_cause({server}, {Action::kEndJob}, "node 2 on host b"),
            "lockrun: rank 4 (ps:0, pid 1004, node 2 on host b) exited with code 3\n");
}

TEST(FailureSummary, SaysWhenNobodyFailedByItselfAndWhoLeftEarly) {
  const std::vector<RankExit> exits = {code(1, 0, 50), code(0, kPeerLostExitCode, 100)};
  const auto text = failure_cause(exits, judge(exits, 2, at(100), kWait));
  EXPECT_THAT(text, HasSubstr("no rank failed by itself"));
  EXPECT_THAT(text, HasSubstr("rank 1 (pid 1001) had ended with code 0"));
}

}  // namespace
}  // namespace lockstep::launch

#include "src/launch/supervise/failure_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "lockstep/core/error.h"
#include "src/launch/supervise/memory_kills.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using Action = Decision::Action;

constexpr milliseconds kWait(500);

Clock::time_point at(int ms) { return Clock::time_point() + milliseconds(ms); }
RankExit code(int rank, int value, int ms) { return {rank, 1000 + rank, false, value, false, at(ms)}; }
RankExit signal(int rank, int value, int ms) { return {rank, 1000 + rank, true, value, false, at(ms)}; }

TEST(FailurePolicy, GoodExitsNeverEndTheJob) {
  EXPECT_EQ(decide({}, 3, at(0), kWait).action, Action::kContinue);
  EXPECT_EQ(decide({code(1, 0, 1)}, 3, at(9999), kWait).action, Action::kContinue);
  EXPECT_EQ(decide({code(1, 0, 1), code(0, 0, 2), code(2, 0, 3)}, 3, at(4), kWait).action, Action::kContinue);
}

TEST(FailurePolicy, TheFirstFailureIsTheCauseAtOnce) {
  const auto decision = decide({code(2, 0, 1), signal(1, SIGSEGV, 5), code(0, 3, 6)}, 4, at(6), kWait);
  EXPECT_EQ(decision.action, Action::kEndJob);
  EXPECT_EQ(decision.cause, 1u);
  EXPECT_FALSE(decision.only_consequences);
}

TEST(FailurePolicy, AConsequenceWaitsForItsCause) {
  std::vector<RankExit> exits = {code(0, kPeerLostExitCode, 100), code(2, kPeerLostExitCode, 300)};
  auto decision = decide(exits, 4, at(599), kWait);
  EXPECT_EQ(decision.action, Action::kWaitForCause);
  EXPECT_EQ(decision.until, at(600)) << "counted from the first of them";
  exits.push_back(code(3, 9, 599));
  decision = decide(exits, 4, at(599), kWait);
  EXPECT_EQ(decision.action, Action::kEndJob);
  EXPECT_EQ(decision.cause, 2u);
  EXPECT_FALSE(decision.only_consequences);
}

TEST(FailurePolicy, OnlyConsequencesEndTheJobWhenTheWaitIsOverOrNobodyIsLeft) {
  const std::vector<RankExit> exits = {code(1, 0, 50), code(0, kPeerLostExitCode, 100)};
  auto decision = decide(exits, 3, at(600), kWait);
  EXPECT_EQ(decision.action, Action::kEndJob);
  EXPECT_EQ(decision.cause, 1u);
  EXPECT_TRUE(decision.only_consequences);
  decision = decide(exits, 2, at(100), kWait);
  EXPECT_EQ(decision.action, Action::kEndJob);
  EXPECT_TRUE(decision.only_consequences);
}

TEST(FailurePolicy, ASignalOfThatNumberIsNoConsequence) {
  EXPECT_TRUE(code(0, kPeerLostExitCode, 0).is_consequence());
  EXPECT_FALSE(signal(0, kPeerLostExitCode, 0).is_consequence());
  EXPECT_EQ(signal(0, SIGKILL, 0).exit_code(), 137);
  EXPECT_EQ(code(0, 3, 0).exit_code(), 3);
}

TEST(FailureSummary, NamesRankProcessCauseAndLastLines) {
  const std::vector<RankExit> exits = {signal(1, SIGSEGV, 5)};
  const auto text = failure_cause(exits, decide(exits, 2, at(6), kWait)) + failure_details({"first", "second"});
  EXPECT_THAT(text, HasSubstr("rank 1 (pid 1001) was killed by signal 11 (SIGSEGV: Segmentation fault)\n"));
  EXPECT_THAT(text, HasSubstr("    first\n    second\n"));
  EXPECT_EQ(failure_cause({code(0, 3, 0)}, {Action::kEndJob}), "lockrun: rank 0 (pid 1000) exited with code 3\n");
  EXPECT_EQ(failure_cause({code(0, 3, 0)}, {Action::kEndJob}, "node 2 on host b"),
            "lockrun: rank 0 (pid 1000, node 2 on host b) exited with code 3\n");
  EXPECT_THAT(failure_details({}), HasSubstr("nothing on stderr"));
  RankExit server = code(4, 3, 0);
  server.task = "ps:0";
  EXPECT_EQ(failure_cause({server}, {Action::kEndJob}), "lockrun: rank 4 (ps:0, pid 1004) exited with code 3\n");
  EXPECT_EQ(failure_cause({server}, {Action::kEndJob}, "node 2 on host b"),
            "lockrun: rank 4 (ps:0, pid 1004, node 2 on host b) exited with code 3\n");
}

TEST(FailureSummary, SaysOfASigkillWhatIsKnownAndNoMore) {
  const Decision decision = decide({signal(1, SIGKILL, 5)}, 2, at(6), kWait);
  const auto text = [&](std::optional<MemoryKills> kills) {
    return failure_cause({signal(1, SIGKILL, 5)}, decision, "", kills);
  };
  EXPECT_THAT(text(MemoryKills{1, std::chrono::seconds(10)}),
              HasSubstr("lockrun: the system's memory killer has ended 1 process of this control group in the last 10 "
                        "s; if the rank was"));
  EXPECT_THAT(text(MemoryKills{2, std::chrono::seconds(1)}),
              HasSubstr("has ended 2 processes of this control group in the last 1 s"));
  EXPECT_THAT(
      text(MemoryKills{0, std::chrono::seconds(10)}),
      HasSubstr(
          "has ended no process of this control group in the last 10 s: a process sent it, perhaps the rank itself\n"));
  EXPECT_THAT(text(std::nullopt),
              HasSubstr("a process sent it, perhaps the rank itself, or the system because memory ran out"));
}

TEST(MemoryKillLog, CountsWhatWasKilledAMomentAgoAndNotWhatWasKilledBefore) {
  MemoryKillLog log;
  const auto recent = [&log](long total, int ms) { return log.recent(total, at(ms)).value_or(MemoryKills{-1}); };
  log.note(7, at(0));
  EXPECT_EQ(log.due(), at(1000));
  EXPECT_EQ(recent(7, 300).count, 0) << "killed before the start";
  EXPECT_EQ(recent(8, 300).count, 1);
  EXPECT_EQ(recent(8, 300).within, std::chrono::seconds(1)) << "no longer than the job runs";
  for (int ms = 1000; ms <= 5000; ms += 1000) log.note(7, at(ms));
  for (int ms = 6000; ms <= 60'000; ms += 1000) log.note(8, at(ms));  // a helper process is killed
  EXPECT_EQ(recent(8, 60'500).count, 0) << "a minute ago";
  EXPECT_EQ(recent(10, 60'500).count, 2);
  EXPECT_EQ(recent(10, 60'500).within, std::chrono::seconds(11));
  log.note(9, at(61'000));
  log.note(9, at(62'000));
  EXPECT_EQ(recent(9, 62'100).count, 1) << "a process with much memory takes a while to end";
}

TEST(MemoryKillLog, KnowsNothingWhereTheSystemDoesNotCount) {
  MemoryKillLog log;
  log.note(std::nullopt, at(0));
  EXPECT_FALSE(log.due());
  EXPECT_FALSE(log.recent(std::nullopt, at(10)));
  EXPECT_FALSE(log.recent(3, at(10)));
}

// Ranks 0 to 2 are workers, rank 3 is a server.
RankExit worker(RankExit exit) {
  exit.may_fail = true;
  return exit;
}

TEST(FailurePolicy, WorkersMayFailAsLongAsOneIsLeft) {
  std::vector<RankExit> exits = {worker(signal(1, SIGKILL, 1)), worker(code(0, kPeerLostExitCode, 2))};
  EXPECT_EQ(decide(exits, 4, at(9999), kWait, 3).action, Action::kContinue);
  EXPECT_EQ(failed_workers(exits), 2);
  exits.push_back(worker(code(2, 0, 3)));
  EXPECT_EQ(decide(exits, 4, at(9999), kWait, 3).action, Action::kContinue) << "it has ended successfully";
  exits.back() = worker(code(2, 9, 3));
  const auto decision = decide(exits, 4, at(3), kWait, 3);
  EXPECT_EQ(decision.action, Action::kEndJob);
  EXPECT_EQ(decision.cause, 0u) << "the first that failed by itself";
}

TEST(FailurePolicy, AServersFailureIsTheCauseEvenAfterAWorkers) {
  std::vector<RankExit> exits = {worker(signal(1, SIGKILL, 1)), code(3, kPeerLostExitCode, 1000)};
  EXPECT_EQ(decide(exits, 5, at(1400), kWait, 3).action, Action::kWaitForCause);
  exits.push_back(signal(4, SIGSEGV, 1400));
  auto decision = decide(exits, 5, at(1400), kWait, 3);
  EXPECT_EQ(decision.action, Action::kEndJob);
  EXPECT_EQ(decision.cause, 2u);
  exits.pop_back();
  decision = decide(exits, 5, at(1500), kWait, 3);
  EXPECT_EQ(decision.action, Action::kEndJob);
  EXPECT_EQ(decision.cause, 0u) << "no server failed by itself: this one cannot go on without the worker";
  EXPECT_FALSE(decision.only_consequences);
}

TEST(FailureSummary, NamesAWorkerThatMayFail) {
  RankExit exit = worker(signal(1, SIGKILL, 1));
  exit.task = "worker:1";
  EXPECT_EQ(
      allowed_failure(exit, 2, 3),
      "lockrun: rank 1 (worker:1, pid 1001) was killed by signal 9 (SIGKILL: Killed): the job goes on with 2 of 3 "
      "workers\n");
}

TEST(FailureSummary, SaysWhenNobodyFailedByItselfAndWhoLeftEarly) {
  const std::vector<RankExit> exits = {code(1, 0, 50), code(0, kPeerLostExitCode, 100)};
  const auto text = failure_cause(exits, decide(exits, 2, at(100), kWait));
  EXPECT_THAT(text, HasSubstr("no rank failed by itself"));
  EXPECT_THAT(text, HasSubstr("rank 1 (pid 1001) had ended with code 0"));
}

}  // namespace
}  // namespace lockstep::launch

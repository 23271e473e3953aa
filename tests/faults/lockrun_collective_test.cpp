// Real collectives under lockrun: when one rank fails, the others end by themselves, and lockrun tells the cause from
// its consequences.
#include <gmock/gmock.h>

#include <csignal>

#include "tests/faults/hand_job.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> training(int ranks, const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {LOCKRUN, "--no-fold", "-n", std::to_string(ranks)};
  for (const std::string& word : collective_rank(arguments)) command.push_back(word);
  return command;
}

struct Death {
  const char* how;
  int code;
  const char* described;
};

class LockrunCollectives : public ::testing::TestWithParam<std::tuple<const char*, Death>> {
 protected:
  ChildOptions options() const { return {.environment = {{"LOCKSTEP_TRANSPORT", std::get<0>(GetParam())}}}; }
};

TEST_P(LockrunCollectives, TheRankThatFailedIsBlamedAndNotTheOnesThatFollowed) {
  const Death& death = std::get<1>(GetParam());
  Child job(training(3, {"steps=1000000", "fail_rank=1", "fail_at=50", std::string("how=") + death.how}), options());
  EXPECT_EQ(job.wait(), death.code) << job.errors();
  EXPECT_THAT(job.errors(), HasSubstr("lockrun: rank 1 (pid "));
  EXPECT_THAT(job.errors(), HasSubstr(death.described));
  EXPECT_THAT(job.errors(), Not(HasSubstr("lockrun: rank 0 (pid ")));
  EXPECT_THAT(job.errors(), Not(HasSubstr("lockrun: rank 2 (pid ")));
  EXPECT_TRUE(job.nothing_left());
}

INSTANTIATE_TEST_SUITE_P(EveryDeath, LockrunCollectives,
                         ::testing::Combine(::testing::Values("shm", "tcp"),
                                            ::testing::Values(Death{"kill", 128 + SIGKILL, "SIGKILL"},
                                                              Death{"segv", 128 + SIGSEGV, "SIGSEGV"},
                                                              Death{"exit", 3, "exited with code 3"},
                                                              Death{"throw", 1, "this rank has had enough"})),
                         [](const auto& tested) {
                           return std::string(std::get<0>(tested.param)) + "_" + std::get<1>(tested.param).how;
                         });

class LockrunWires : public ::testing::TestWithParam<const char*> {
 protected:
  ChildOptions options(Environment more = {}) const {
    more["LOCKSTEP_TRANSPORT"] = GetParam();
    return {.environment = more};
  }
};
INSTANTIATE_TEST_SUITE_P(EveryWire, LockrunWires, ::testing::Values("shm", "tcp"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(LockrunWires, ATrainingRunsToItsEnd) {
  Child job(training(4, {"steps=30"}), options());
  EXPECT_EQ(job.wait(60s), 0) << job.errors();
  for (const std::string rank : {"0", "1", "2", "3"})
    EXPECT_THAT(job.output(), HasSubstr("[" + rank + "] rank " + rank + " of 4 did 30 steps over " + GetParam()));
  EXPECT_TRUE(job.nothing_left());
}

TEST_P(LockrunWires, ARankThatLeavesEarlyLeavesOnlyConsequences) {
  Child job(training(3, {"steps=1000000", "fail_rank=2", "fail_at=50", "how=leave"}), options());
  EXPECT_EQ(job.wait(), 75) << job.errors();
  EXPECT_THAT(job.errors(), HasSubstr("no rank failed by itself"));
  EXPECT_THAT(job.errors(), HasSubstr("rank 2"));
}

TEST_P(LockrunWires, AStoppedRankIsNamedAndEnded) {
  Child job(training(3, {"steps=1000000", "fail_rank=2", "fail_at=50", "how=stop"}),
            options({{"LOCKSTEP_TIMEOUT_S", "4"}}));
  EXPECT_EQ(job.wait(), 1) << job.errors();
  EXPECT_THAT(job.errors(), HasSubstr("for rank 2 (pid"));
  EXPECT_TRUE(job.nothing_left());
}

TEST_P(LockrunWires, AKilledLauncherTakesAWorkingJobWithIt) {
  Child job(training(3, {"steps=1000000"}), options());
  ASSERT_TRUE(job.wait_for_output("rank 2 of 3 is running")) << job.errors();
  job.signal(SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_TRUE(job.nothing_left());
}

TEST_P(LockrunWires, AnInterruptEndsAWorkingJob) {
  Child job(training(3, {"steps=1000000"}), options());
  ASSERT_TRUE(job.wait_for_output("rank 2 of 3 is running")) << job.errors();
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(), 128 + SIGINT);
  EXPECT_TRUE(job.nothing_left());
}

// The counts differ, so it would be a mismatch if ranks of the two jobs met.
TEST_P(LockrunWires, TwoJobsSideBySideDoNotMeet) {
  Child first(training(2, {"steps=40", "count=100", "pause_ms=5"}), options());
  Child second(training(2, {"steps=30", "count=200", "pause_ms=5"}), options());
  EXPECT_EQ(first.wait(), 0) << first.errors();
  EXPECT_EQ(second.wait(), 0) << second.errors();
  EXPECT_THAT(first.output(), HasSubstr("rank 1 of 2 did 40 steps"));
  EXPECT_THAT(second.output(), HasSubstr("rank 1 of 2 did 30 steps"));
}

TEST_P(LockrunWires, ModelsThatDifferEndTheJobWithBothSides) {
  Child job(training(3, {"steps=10", "fail_rank=1", "how=other_model"}), options());
  EXPECT_EQ(job.wait(), 1) << job.errors();
  EXPECT_THAT(
      job.errors(),
      HasSubstr(
          "rank 1 has parameter 'weight' float32 (5, 8) at position 0, rank 0 has parameter 'weight' float32 (4, 8)"));
  EXPECT_THAT(job.output(), Not(HasSubstr("steps"))) << "nobody trains on";
}

}  // namespace
}  // namespace lockstep::testing

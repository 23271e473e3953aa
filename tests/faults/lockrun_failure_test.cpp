// Ranks that fail, hang and leave processes behind; a launcher that is interrupted or killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/faults/lockrun.h"
#include "tests/faults/refused_calls.h"
#include "tests/support/limits_here.h"

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

// The guarantee is two seconds; the rest is for a loaded machine and the sanitizers' start.
constexpr milliseconds kSoon(6000);

class Failure : public ::testing::TestWithParam<bool> {
 protected:
  static std::vector<std::string> start(int ranks, const std::vector<std::string>& acts) {
    return GetParam() ? spawning(ranks, acts) : lockrun(ranks, acts);
  }
};
INSTANTIATE_TEST_SUITE_P(Lockrun, Failure, ::testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Spawn, Failure, ::testing::Values(true));

TEST_P(Failure, AllWell) {
  Child job(start(3, {"out:fine"}));
  EXPECT_EQ(job.wait(), 0) << job.errors();
  EXPECT_EQ(job.errors(), "");
  EXPECT_TRUE(job.nothing_left());
}

TEST_P(Failure, ACodeEndsTheOthersAndIsExplained) {
  Child job(start(3, {"hang", "err:early+err:the reason+exit:7", "sleep:30000"}));
  EXPECT_EQ(job.wait(kSoon), 7);
  EXPECT_THAT(job.errors(), HasSubstr("lockrun: rank 1 (pid "));
  EXPECT_THAT(job.errors(), HasSubstr(") exited with code 7\n"));
  EXPECT_THAT(job.errors(), HasSubstr("    early\n    the reason\n"));
  EXPECT_TRUE(job.nothing_left());
}

TEST_P(Failure, AnExceptionIsAFailureWithItsMessage) {
  Child job(start(2, {"throw:disk on fire", "hang"}));
  EXPECT_EQ(job.wait(kSoon), 1);
  EXPECT_THAT(job.errors(), HasSubstr("rank_program: error: disk on fire\n"));
}

TEST_P(Failure, ASignalIsNamed) {
  Child crash(start(2, {"hang", "segv"}));
  EXPECT_EQ(crash.wait(kSoon), 128 + SIGSEGV);
  EXPECT_THAT(crash.errors(), HasSubstr("was killed by signal 11 (SIGSEGV: Segmentation fault)"));
  Child killed(start(2, {"kill", "hang"}));
  EXPECT_EQ(killed.wait(kSoon), 128 + SIGKILL);
  EXPECT_THAT(killed.errors(), HasSubstr("was killed by signal 9 (SIGKILL: Killed)"));
  EXPECT_TRUE(killed.nothing_left());
}

TEST_P(Failure, AStoppedRankIsEndedAsWell) {
  Child job(start(2, {"stop", "sleep:300+exit:4"}));
  EXPECT_EQ(job.wait(kSoon), 4);
  EXPECT_TRUE(job.nothing_left());
}

TEST_P(Failure, TheCauseIsFoundBehindItsConsequence) {
  Child job(start(3, {"lost:rank 1 is gone", "sleep:200+err:guilty+exit:3", "lost:rank 1 is gone"}));
  EXPECT_EQ(job.wait(kSoon), 3);
  EXPECT_THAT(job.errors(), HasSubstr("lockrun: rank 1 (pid "));
  EXPECT_THAT(job.errors(), HasSubstr("    guilty\n"));
}

TEST_P(Failure, OnlyConsequencesAreSaidToBeThat) {
  Child job(start(3, {"lost:gone", "exit:0", "hang"}));
  EXPECT_EQ(job.wait(kSoon), 75);
  EXPECT_THAT(job.errors(), HasSubstr("no rank failed by itself"));
  EXPECT_THAT(job.errors(), HasSubstr("lockrun: rank 1 (pid "));
}

TEST_P(Failure, AFinishedRankDoesNotDisturbTheOthers) {
  Child job(start(2, {"exit:0", "sleep:1000+out:saved"}));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_THAT(job.output(), HasSubstr("saved\n"));
}

TEST_P(Failure, GrandchildrenEndWithTheirRank) {
  for (const char* act : {"grandchild", "daemon"})
    for (const char* end : {"+exit:0", "+exit:5"}) {
      Child job(start(2, {std::string(act) + end, "sleep:100"}));
      EXPECT_EQ(job.wait(kSoon), end[6] - '0') << act << end;
      EXPECT_TRUE(job.nothing_left()) << act << end;
    }
}

TEST_P(Failure, ASignalToTheLauncherReachesAll) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    Child job(start(2, {"out:up+flush+sleep:30000"}));
    ASSERT_TRUE(job.wait_for_output("up"));
    job.signal(number);
    EXPECT_EQ(job.wait(kSoon), 128 + number);
    EXPECT_THAT(job.errors(), HasSubstr("ended all ranks"));
    EXPECT_TRUE(job.nothing_left());
  }
}

TEST_P(Failure, ASecondInterruptKillsAtOnce) {
  Child job(start(2, {"grandchild+out:up+flush+hang"}));
  ASSERT_TRUE(job.wait_for_output("up"));
  std::this_thread::sleep_for(milliseconds(300));  // by now SIGINT is ignored
  job.signal(SIGINT);
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_GE(job.alive().size(), 3u) << "they ignore the first one";
  const auto begin = std::chrono::steady_clock::now();
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(kSoon), 130);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(4000)) << "waited for the grace of the first";
  EXPECT_TRUE(job.nothing_left());
}

TEST_P(Failure, AKilledLauncherLeavesNothing) {
  Child job(start(2, {"grandchild+daemon+out:up+flush+hang"}));
  ASSERT_TRUE(job.wait_for_output("up"));
  EXPECT_GE(job.alive().size(), 6u) << "launcher, guard, two ranks and what they started";
  job.signal(SIGKILL);
  EXPECT_EQ(job.wait(), 137);
  EXPECT_TRUE(job.nothing_left());
}

TEST(LockrunFailure, AKilledLauncherLeavesNothingBelowAShell) {
  Child job({LOCKRUN, "-n", "2", "--no-fold", "sh", "-c", RANK_PROGRAM " out:up+flush+hang & wait"});
  ASSERT_TRUE(job.wait_for_output("[0] up"));
  ASSERT_TRUE(job.wait_for_output("[1] up"));
  job.signal(SIGKILL);
  EXPECT_EQ(job.wait(), 137);
  EXPECT_TRUE(job.nothing_left());
}

std::string name_of_process(pid_t pid) {
  std::string name;
  std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/comm"), name);
  return name;
}

std::size_t count_descriptors(pid_t pid) {
  const std::filesystem::directory_iterator open("/proc/" + std::to_string(pid) + "/fd"), end;
  return static_cast<std::size_t>(std::distance(open, end));
}

// As before Linux 5.9, and in sandboxes that refuse the call.
TEST(LockrunFailure, TheGuardHoldsNothingAndEndsWithoutCloseRange) {
  if (!can_refuse_system_calls()) GTEST_SKIP() << "this process may install no seccomp filter";
  for (const bool is_killed : {false, true}) {
    Child job(
        {LOCKRUN, "-n", "2", "--no-fold", RANK_PROGRAM, is_killed ? "out:up+flush+hang" : "out:up+flush+sleep:500"},
        {.missing_calls = {SYS_close_range}});
    ASSERT_TRUE(job.wait_for_output("[1] up")) << job.errors();
    const auto processes = job.alive();
    const auto guard = std::find_if(processes.begin(), processes.end(),
                                    [](pid_t pid) { return name_of_process(pid) == "lockrun-guard"; });
    ASSERT_NE(guard, processes.end());
    EXPECT_EQ(count_descriptors(*guard), 1u) << "the pipe from lockrun, and nothing of the user's";
    if (is_killed) job.signal(SIGKILL);
    EXPECT_EQ(job.wait(kSoon), is_killed ? 137 : 0) << job.errors();
    EXPECT_TRUE(job.nothing_left());
  }
}

TEST(LockrunFailure, WhatTheUserHasIgnoredStaysIgnored) {
  Child job({"nohup", LOCKRUN, "-n", "2", "--no-fold", RANK_PROGRAM, "out:up+flush+sleep:500+out:done"});
  ASSERT_TRUE(job.wait_for_output("up"));
  job.signal(SIGHUP);
  EXPECT_EQ(job.wait(), 0);
  EXPECT_THAT(job.output(), HasSubstr("[1] done"));
}

// Schedulers' notices before a time limit, timers, real-time signals: they would end a process without a handler.
TEST(LockrunFailure, ANoticeReachesTheRanksThatHandleItAndEndsNobody) {
  if (is_emulated()) GTEST_SKIP() << "the system says of all ranks that they handle the signals: the emulator does";
  const std::string done = ::testing::TempDir() + "noticed-" + std::to_string(::getpid());
  for (const int signal : {SIGUSR2, SIGALRM, SIGXCPU, SIGRTMIN + 1}) {
    const std::string number = std::to_string(signal);
    Child job(lockrun(3, {"catch:" + number + "+out:up+await:" + done, "out:up+await:" + done}));
    for (const char* rank : {"0", "1", "2"})
      ASSERT_TRUE(job.wait_for_output(std::string("[") + rank + "] up")) << job.errors();
    job.signal(signal);
    EXPECT_TRUE(job.wait_for_output("[0] caught")) << number;
    std::ofstream{done};
    EXPECT_EQ(job.wait(), 0) << job.errors();
    std::remove(done.c_str());
    EXPECT_THAT(job.errors(),
                HasSubstr(": passed on to the ranks, but not to 1-2: a rank without a handler for it would end\n"));
  }
}

}  // namespace
}  // namespace lockstep::testing

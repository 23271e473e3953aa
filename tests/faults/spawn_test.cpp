// spawn() in the shape of torch.multiprocessing.spawn, with real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> spawning_program(const std::string& act) { return {SPAWN_RANK, act}; }

TEST(SpawnLikePyTorch, RanksGetTheirArgumentsAndTheParentGoesOn) {
  Child job(spawning_program("join"));
  EXPECT_EQ(job.wait(), 0) << job.errors();
  EXPECT_EQ(job.output(), "3 ranks: 7 0.1 'two words' 1 sum 6\nthe parent goes on\n");
}

TEST(SpawnLikePyTorch, DoesWhatItsPageSays) {
  Child job(spawning_program("page"));
  EXPECT_EQ(job.wait(), 0) << job.errors();
  EXPECT_THAT(job.output(), AllOf(HasSubstr("2 ranks: 10 0.1\n"), HasSubstr("still training\n")));
}

TEST(SpawnLikePyTorch, ArgumentsAreThoseOfTheParent) {
  Child job(spawning_program("value"));
  EXPECT_EQ(job.wait(), 0) << job.errors();
  EXPECT_EQ(job.output(), "sent\n");
}

TEST(SpawnLikePyTorch, WithoutJoinTheParentIsFreeWhileTheyRun) {
  Child job(spawning_program("no-join"));
  EXPECT_EQ(job.wait(), 0) << job.errors();
  EXPECT_EQ(job.output(), "2 ranks, done 0\ndone 1 1\n");
  EXPECT_TRUE(job.nothing_left());
}

TEST(SpawnLikePyTorch, TwoCallsAreTwoJobs) {
  Child job(spawning_program("two"));
  EXPECT_EQ(job.wait(), 0) << job.errors();
  EXPECT_EQ(job.output(), "first\nsecond 2\nend\n");
}

TEST(SpawnLikePyTorch, OneRanksFailureEndsAllAndJoinThrows) {
  Child job(spawning_program("fail"));
  EXPECT_EQ(job.wait(), 1);
  EXPECT_THAT(job.errors(), AllOf(HasSubstr("the disk of rank 1 is full"), HasSubstr("rank 1"),
                                  HasSubstr("spawn_rank: error: spawn: the job of 3 ranks ended with exit code 1")));
  EXPECT_TRUE(job.nothing_left());
}

TEST(SpawnLikePyTorch, RanksEndWithTheirContext) {
  Child job(spawning_program("leave"));
  EXPECT_EQ(job.wait(), 0) << job.errors();
  EXPECT_TRUE(job.nothing_left());
}

TEST(SpawnLikePyTorch, RanksDoNotOutliveAKilledParent) {
  Child job(spawning_program("wait"));
  ASSERT_TRUE(job.wait_for_output("started"));
  EXPECT_EQ(job.alive().size(), 5U) << "parent, supervisor, guard and two ranks";
  job.signal(SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_TRUE(job.nothing_left(std::chrono::seconds(15)));
}

TEST(SpawnLikePyTorch, TerminateEndsRanksWhoseSupervisorHangs) {
  Child job(spawning_program("stopped"));
  EXPECT_EQ(job.wait(std::chrono::seconds(60)), 0) << job.errors();
  EXPECT_THAT(job.output(), HasSubstr("spawn: the job of 2 ranks ended with exit code 137"));
  EXPECT_TRUE(job.nothing_left(std::chrono::seconds(15)));
}

TEST(SpawnLikePyTorch, MistakesAreNamed) {
  Child job(spawning_program("refusals"));
  EXPECT_EQ(job.wait(), 0) << job.errors();
  EXPECT_THAT(job.output(), AllOf(HasSubstr("spawn: got nprocs 0; expected at least 1"),
                                  HasSubstr("spawn: the arguments have 200022 bytes together"),
                                  HasSubstr("spawn: the arguments have 120022 bytes together, as a JSON text"),
                                  HasSubstr("spawn: an argument is not UTF-8"), Not(HasSubstr("nothing was thrown"))));
#ifndef __SANITIZE_THREAD__
  EXPECT_THAT(job.output(), HasSubstr("spawn: this process has 2 threads"));
#endif
  Child nested(spawning_program("nested"));
  EXPECT_EQ(nested.wait(), 1);
  EXPECT_THAT(nested.errors(), HasSubstr("called in the function of another spawn()"));
}

TEST(SpawnLikePyTorch, InAnotherLaunchersJobItRunsInPlace) {
  Child job({LOCKRUN, "-n", "3", "--no-prefix", SPAWN_RANK, "join"});
  EXPECT_EQ(job.wait(), 0) << job.errors();
  EXPECT_EQ(job.output(), "3 ranks: 7 0.1 'two words' 1 sum 6\n");
  Child other({LOCKRUN, "-n", "2", SPAWN_RANK, "join"});
  EXPECT_NE(other.wait(), 0);
  EXPECT_THAT(other.errors(), HasSubstr("has made this process one of 2 ranks, and the call requests 3"));
}

}  // namespace
}  // namespace lockstep::testing

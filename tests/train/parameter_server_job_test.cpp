// parameter_server under lockrun, with real processes: its tasks, its end, workers that leave or stay away. Those that
// are killed, with docs/troubleshooting.md's limits: tests/faults/fault_table_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kForever = "1000000000";

std::vector<std::string> job_of(const std::string& servers, const std::string& workers,
                                const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {
      LOCKSTEP_LOCKRUN, "--no-fold", "--ps", servers, "--workers", workers, LOCKSTEP_PARAMETER_SERVER_RANK};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

TEST(ParameterServerJob, ServersEndWithTheLastWorker) {
  Child job(job_of("2", "2", {"10"}));
  EXPECT_EQ(job.wait(std::chrono::seconds(60)), 0) << job.errors();
  for (const char* line :
       {"[worker:0] step 10\n", "[worker:1] worker:1 is process", "[ps:0] served\n", "[ps:1] served\n"})
    EXPECT_THAT(job.output(), HasSubstr(line));
  EXPECT_TRUE(job.nothing_left());
}

// It has not finished its strategy: exit() runs no destructor of main's.
TEST(ParameterServerJob, AWorkerThatExitsAmidStepsIsNamed) {
  Child job(job_of("1", "2", {kForever, "exit"}));
  EXPECT_EQ(job.wait(std::chrono::seconds(60)), 75) << job.errors();
  EXPECT_THAT(job.errors(), AllOf(HasSubstr("has left the group"), HasSubstr("rank 1 is worker:1")));
  EXPECT_TRUE(job.nothing_left());
}

TEST(ParameterServerJob, AWorkerThatStaysAwayIsNamedAtTheDeadline) {
  Child job(job_of("1", "2", {kForever, "away", "60"}), {.environment = {{"LOCKSTEP_TIMEOUT_S", "10"}}});
  EXPECT_EQ(job.wait(std::chrono::seconds(90)), 1) << job.errors();
  EXPECT_THAT(job.errors(), HasSubstr("missing: worker:1 (rank 1), after step 4"));
  EXPECT_TRUE(job.nothing_left());
}

TEST(ParameterServerJob, ProcessesThatAreNotAllOfTheJobAreRefused) {
  Child job({LOCKSTEP_LOCKRUN, "--no-fold", "-n", "2", "env", "LOCKSTEP_JOB=ps", "LOCKSTEP_TASK_INDEX=0",
             LOCKSTEP_PARAMETER_SERVER_RANK, "1"});
  EXPECT_EQ(job.wait(std::chrono::seconds(30)), 2) << job.errors();
  EXPECT_THAT(job.errors(), HasSubstr("parameter_server: ranks 0 and 1 are both ps:0"));
}

TEST(ParameterServerJob, ServersWithoutWorkersAreRefusedOnAllRanks) {
  Child job({LOCKSTEP_LOCKRUN, "--no-fold", "-n", "2", "sh", "-c",
             "LOCKSTEP_JOB=ps LOCKSTEP_TASK_INDEX=$RANK exec " LOCKSTEP_PARAMETER_SERVER_RANK " 1"});
  EXPECT_EQ(job.wait(std::chrono::seconds(30)), 2) << job.errors();
  for (const char* rank : {"[0] ", "[1] "})
    EXPECT_THAT(
        job.errors(),
        HasSubstr(rank +
                  std::string("parameter_server_rank: error: parameter_server: all 2 ranks are servers, and there is "
                              "no worker: start with lockrun --ps P --workers W")));
}

// Ranks that a task of a job starts are no part of it.
TEST(ParameterServerJob, AJobWithinATaskHasTasksOfItsOwn) {
  Child job(
      {LOCKSTEP_LOCKRUN, "--no-fold", "--ps", "1", "--workers", "1", LOCKSTEP_LOCKRUN, "--no-fold", "-n", "1",
       "--no-prefix", "sh", "-c",
       "echo job=$LOCKSTEP_JOB index=$LOCKSTEP_TASK_INDEX servers=$LOCKSTEP_NUM_PS workers=$LOCKSTEP_NUM_WORKERS."});
  EXPECT_EQ(job.wait(std::chrono::seconds(30)), 0) << job.errors();
  for (const char* line : {"[worker:0] job= index= servers= workers=.\n", "[ps:0] job= index= servers= workers=.\n"})
    EXPECT_THAT(job.output(), HasSubstr(line));
}

}  // namespace
}  // namespace lockstep::testing

// parameter_server under lockrun, with real processes: its tasks, its end, workers that leave or stay away. Those that
// are killed, with docs/troubleshooting.md's limits: tests/faults/fault_table_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "tests/faults/child.h"
#include "tests/support/temporary.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kForever = "1000000000";

std::vector<std::string> job_of(const std::string& servers, const std::string& workers,
                                const std::vector<std::string>& arguments, const std::vector<std::string>& flags = {}) {
  std::vector<std::string> command = {LOCKSTEP_LOCKRUN, "--no-fold", "--ps", servers, "--workers", workers};
  command.insert(command.end(), flags.begin(), flags.end());
  command.emplace_back(LOCKSTEP_PARAMETER_SERVER_RANK);
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

// -- a job that loses a process and goes on

constexpr std::chrono::seconds kLong(60);

// The process of a task, which has printed it.
pid_t process_of(const Child& job, const std::string& task) {
  const std::string text = task + " is process ";
  EXPECT_TRUE(job.wait_for_output(text, kLong)) << job.errors();
  const std::string output = job.output();
  return std::stoi(output.substr(output.find(text) + text.size()));
}

TEST(ParameterServerJob, AnAsynchronousJobSurvivesAWorkersDeath) {
  Child job(job_of("2", "3", {"300", "survive"}, {"--allow-worker-failures"}));
  const pid_t worker = process_of(job, "worker:1");
  ASSERT_TRUE(job.wait_for_output("[worker:0] step 50\n", kLong)) << job.errors();
  ASSERT_EQ(::kill(worker, SIGKILL), 0);
  EXPECT_EQ(job.wait(kLong), 0) << job.errors();
  for (const char* line : {"[worker:0] step 300\n", "[worker:2] step 300\n", "[ps:0] served\n", "[ps:1] served\n"})
    EXPECT_THAT(job.output(), HasSubstr(line));
  for (const char* server : {"ps:0", "ps:1"})
    EXPECT_THAT(job.errors(), HasSubstr(std::string("parameter_server: ") + server + ": worker:1 (rank 1) is lost"));
  EXPECT_THAT(job.errors(),
              AllOf(HasSubstr("lockrun: rank 1 (worker:1, pid "), HasSubstr("was killed by signal 9 (SIGKILL: Killed)"),
                    HasSubstr("the job goes on with 2 of 3 workers"),
                    HasSubstr("lockrun: 1 of 3 workers failed, which --allow-worker-failures allows")));
  EXPECT_TRUE(job.nothing_left());
}

// worker:0's death counts as any other's, once its weights have begun the job.
TEST(ParameterServerJob, AnAsynchronousJobSurvivesTheDeathOfWorkerZero) {
  Child job(job_of("1", "2", {"200", "survive"}, {"--allow-worker-failures"}));
  const pid_t worker = process_of(job, "worker:0");
  ASSERT_TRUE(job.wait_for_output("[worker:1] step 50\n", kLong)) << job.errors();
  ASSERT_EQ(::kill(worker, SIGKILL), 0);
  EXPECT_EQ(job.wait(kLong), 0) << job.errors();
  EXPECT_THAT(job.output(), AllOf(HasSubstr("[worker:1] step 200\n"), HasSubstr("[ps:0] served\n")));
  EXPECT_TRUE(job.nothing_left());
}

TEST(ParameterServerJob, AnAsynchronousJobSurvivesAWorkerThatThrows) {
  Child job(job_of("2", "2", {"40", "fail"}, {"--allow-worker-failures"}));
  EXPECT_EQ(job.wait(kLong), 0) << job.errors();
  EXPECT_THAT(job.output(), AllOf(HasSubstr("[worker:0] step 40\n"), HasSubstr("[ps:1] served\n")));
  EXPECT_THAT(job.errors(), AllOf(HasSubstr("no samples any more"), HasSubstr("worker:1 (rank 1) is lost after step 4"),
                                  HasSubstr("exited with code 1: the job goes on with 1 of 2 workers")));
  EXPECT_TRUE(job.nothing_left());
}

TEST(ParameterServerJob, TheDeathOfAServerOrOfTheLastWorkerEndsTheJob) {
  Child job(job_of("2", "2", {kForever, "survive"}, {"--allow-worker-failures"}));
  const pid_t server = process_of(job, "ps:0");
  ASSERT_TRUE(job.wait_for_output("[worker:0] step 10\n", kLong)) << job.errors();
  ASSERT_EQ(::kill(server, SIGKILL), 0);
  EXPECT_EQ(job.wait(kLong), 137) << job.errors();
  EXPECT_THAT(job.errors(), AllOf(HasSubstr("lost ps:0 (rank 2)"), HasSubstr("(ps:0, pid ")));
  EXPECT_TRUE(job.nothing_left());

  Child alone(job_of("1", "1", {kForever, "survive"}, {"--allow-worker-failures"}));
  const pid_t worker = process_of(alone, "worker:0");
  ASSERT_TRUE(alone.wait_for_output("[worker:0] step 10\n", kLong)) << alone.errors();
  ASSERT_EQ(::kill(worker, SIGKILL), 0);
  EXPECT_EQ(alone.wait(kLong), 137) << alone.errors();
  EXPECT_THAT(alone.errors(), HasSubstr("no worker is left"));
  EXPECT_TRUE(alone.nothing_left());
}

TEST(ParameterServerJob, AStoppedWorkerHoldsUpNoStepOfAJobWithABackup) {
  Child job(job_of("2", "3", {"300", "backup"}));
  const pid_t worker = process_of(job, "worker:2");
  ASSERT_TRUE(job.wait_for_output("[worker:2] step 20\n", kLong)) << job.errors();
  ASSERT_EQ(::kill(worker, SIGSTOP), 0);
  EXPECT_TRUE(job.wait_for_output("[worker:0] step 300\n", std::chrono::seconds(25)))
      << "the others do not wait for it: " << job.errors();
  EXPECT_FALSE(job.has_ended()) << "the servers do";
  ASSERT_EQ(::kill(worker, SIGCONT), 0);
  EXPECT_EQ(job.wait(kLong), 0) << job.errors();
  EXPECT_THAT(job.output(), AllOf(HasSubstr("[worker:2] step 300\n"), HasSubstr("[worker:2] dropped "),
                                  HasSubstr("[ps:1] served\n")));
  EXPECT_THAT(job.output(), ::testing::Not(HasSubstr("[worker:2] dropped 0\n")));
  EXPECT_TRUE(job.nothing_left());
}

std::string sum_of(const Child& job) {
  const std::string output = job.output();
  const std::size_t begin = std::min(output.find("sum "), output.size());
  return output.substr(begin, output.find('\n', begin) - begin);  // other tasks' lines may follow
}

TEST(ParameterServerJob, AJobWhoseServerWasKilledGoesOnFromItsCheckpointWithTheSameBits) {
  Child whole(job_of("2", "2", {"60", "checkpoint", temporary("whole")}));
  EXPECT_EQ(whole.wait(kLong), 0) << whole.errors();
  const std::string folder = temporary("killed");
  Child killed(job_of("2", "2", {"60", "checkpoint", folder}));
  const pid_t server = process_of(killed, "ps:0");
  ASSERT_TRUE(killed.wait_for_output("[worker:0] step 30\n", kLong)) << killed.errors();
  ASSERT_EQ(::kill(server, SIGKILL), 0);
  EXPECT_EQ(killed.wait(kLong), 137) << killed.errors();
  EXPECT_TRUE(killed.nothing_left());
  Child again(job_of("2", "2", {"60", "checkpoint", folder}));
  EXPECT_EQ(again.wait(kLong), 0) << again.errors();
  EXPECT_THAT(again.output(), HasSubstr("[worker:1] resumed at step "));
  EXPECT_THAT(sum_of(whole), HasSubstr("sum 0x"));
  EXPECT_EQ(sum_of(again), sum_of(whole));
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

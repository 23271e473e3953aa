// lockrun --allow-worker-failures: the job goes on without workers that fail, and ends with a server or the last
// worker.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <string>

#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::chrono::seconds kBound(40);

// Two servers and three workers; each runs `script`, with its task's name as $task.
std::vector<std::string> job_of(const std::string& script, bool allows = true) {
  std::vector<std::string> command = {LOCKRUN, "--no-fold", "--ps", "2", "--workers", "3"};
  if (allows) command.push_back("--allow-worker-failures");
  for (const char* word : {"sh", "-c"}) command.push_back(word);
  command.push_back("task=$LOCKSTEP_JOB:$LOCKSTEP_TASK_INDEX; " + script);
  return command;
}

// In these, worker:1 fails before the others have done their work.
const std::string kOthersWork = "; sleep 1.5; echo has finished";

TEST(WorkerFailures, TheJobGoesOnWithoutAWorkerThatIsKilled) {
  Child job(job_of("[ $task != worker:1 ] || { echo before its end >&2; kill -9 $$; }" + kOthersWork));
  EXPECT_EQ(job.wait(kBound), 0) << job.errors();
  for (const char* task : {"worker:0", "worker:2", "ps:0", "ps:1"})
    EXPECT_THAT(job.output(), HasSubstr("[" + std::string(task) + "] has finished\n"));
  EXPECT_THAT(job.output(), Not(HasSubstr("[worker:1] has finished")));
  EXPECT_THAT(job.errors(),
              AllOf(HasSubstr("lockrun: rank 1 (worker:1, pid "),
                    HasSubstr("was killed by signal 9 (SIGKILL: Killed): the job goes on with 2 of 3 workers\n"),
                    HasSubstr("lockrun: 1 of 3 workers failed, which --allow-worker-failures allows:\nlockrun: rank 1 "
                              "(worker:1, pid "),
                    HasSubstr("    before its end\n")));
  EXPECT_TRUE(job.nothing_left());
}

// A signal from outside, to a worker that runs.
TEST(WorkerFailures, AWorkerThatIsKilledFromOutsideIsNamedAtOnce) {
  Child job(job_of("echo $task is $$; case $task in worker:1) sleep 60;; *) sleep 4;; esac"));
  ASSERT_TRUE(job.wait_for_output("worker:1 is "));
  const std::string output = job.output();
  const pid_t worker = std::stoi(output.substr(output.find("worker:1 is ") + std::string("worker:1 is ").size()));
  ASSERT_EQ(::kill(worker, SIGKILL), 0);
  EXPECT_EQ(job.wait(kBound), 0) << job.errors();
  EXPECT_THAT(job.errors(), HasSubstr("(worker:1, pid " + std::to_string(worker) + ") was killed by signal 9"));
  EXPECT_TRUE(job.nothing_left());
}

TEST(WorkerFailures, WithoutTheFlagTheFirstFailureEndsTheJob) {
  Child job(job_of("[ $task != worker:1 ] || exit 3" + kOthersWork, /*allows=*/false));
  EXPECT_EQ(job.wait(kBound), 3) << job.errors();
  EXPECT_THAT(job.output(), Not(HasSubstr("has finished")));
  EXPECT_TRUE(job.nothing_left());
}

TEST(WorkerFailures, AServerThatFailsEndsTheJob) {
  Child job(job_of("[ $task != ps:1 ] || exit 4; sleep 60"));
  EXPECT_EQ(job.wait(kBound), 4) << job.errors();
  EXPECT_THAT(job.errors(), AllOf(HasSubstr("(ps:1, pid "), HasSubstr("exited with code 4")));
  EXPECT_TRUE(job.nothing_left());
}

// A worker that failed long before is not the cause of a server's failure.
TEST(WorkerFailures, AServerIsTheCauseAfterAWorkersFailure) {
  Child job(job_of("[ $task != worker:0 ] || exit 7; sleep 1; [ $task != ps:0 ] || kill -9 $$; sleep 0.1; exit 75"));
  EXPECT_EQ(job.wait(kBound), 128 + SIGKILL) << job.errors();
  EXPECT_THAT(job.errors(), AllOf(HasSubstr("exited with code 7: the job goes on with 2 of 3 workers"),
                                  HasSubstr("(ps:0, pid "), HasSubstr("was killed by signal 9")));
  EXPECT_TRUE(job.nothing_left());
}

// The servers' program does not go on without a worker.
TEST(WorkerFailures, AWorkerIsTheCauseIfServersHaveOnlyLostIt) {
  Child job(job_of("case $task in worker:2) exit 5;; ps:*) sleep 0.3; exit 75;; *) sleep 60;; esac"));
  EXPECT_EQ(job.wait(kBound), 5) << job.errors();
  EXPECT_THAT(job.errors(), AllOf(HasSubstr("(worker:2, pid "), HasSubstr("exited with code 5")));
  EXPECT_TRUE(job.nothing_left());
}

TEST(WorkerFailures, TheLastWorkersFailureEndsTheJob) {
  Child job(job_of("case $task in worker:0) exit 6;; worker:*) sleep 0.5; exit 8;; *) sleep 60;; esac"));
  EXPECT_EQ(job.wait(kBound), 6) << job.errors();
  EXPECT_THAT(job.errors(), HasSubstr("(worker:0, pid "));
  EXPECT_TRUE(job.nothing_left());
}

TEST(WorkerFailures, AWorkerThatHasEndedWellIsLeft) {
  Child job(job_of("case $task in worker:0) exit 0;; worker:*) sleep 0.5; exit 8;; *) sleep 1.5;; esac"));
  EXPECT_EQ(job.wait(kBound), 0) << job.errors();
  EXPECT_THAT(job.errors(), AllOf(HasSubstr("the job goes on with 1 of 3 workers"),
                                  HasSubstr("lockrun: 2 of 3 workers failed, which --allow-worker-failures allows:")));
}

TEST(WorkerFailures, IsRefusedWithoutServersAndOnSeveralNodes) {
  Child ranks({LOCKRUN, "-n", "2", "--allow-worker-failures", "true"});
  EXPECT_EQ(ranks.wait(kBound), 2);
  EXPECT_THAT(ranks.errors(), HasSubstr("--allow-worker-failures: this job has no parameter servers"));
  Child nodes({LOCKRUN, "--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--ps", "1", "--workers",
               "1", "-n", "1", "--allow-worker-failures", "true"});
  EXPECT_EQ(nodes.wait(kBound), 2);
  EXPECT_THAT(nodes.errors(), HasSubstr("--allow-worker-failures: the job has 2 nodes, and the loss of a node ends"));
}

}  // namespace
}  // namespace lockstep::testing

// lockrun --allow-worker-failures: the job goes on without workers that fail, and ends with a server or the last
// worker.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <string>

#include "tests/faults/child.h"
#include "tests/support/temporary.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::chrono::seconds kBound(40);

// Two servers and three workers; each runs `script`, with its task's name as $task. Most wait in it for an event, so
// that the order of the ends does not depend on time.
std::vector<std::string> job_of(const std::string& script, bool allows = true) {
  std::vector<std::string> command = {LOCKRUN, "--no-fold", "--ps", "2", "--workers", "3"};
  if (allows) command.push_back("--allow-worker-failures");
  for (const char* word : {"sh", "-c"}) command.push_back(word);
  command.push_back("task=$LOCKSTEP_JOB:$LOCKSTEP_TASK_INDEX; " + script);
  return command;
}

// Holds a script's processes until the test opens it.
class Gate {
 public:
  std::string pass() const { return "until [ -e " + file_ + " ]; do sleep 0.02; done; "; }
  void open() const { std::ofstream file(file_); }

 private:
  std::string file_ = temporary("gate");
};

const std::string kStays = "while :; do sleep 0.02; done", kFinishes = "echo has finished";

// lockrun has seen a worker's failure.
bool has_seen_failure(const Child& job, int left) {
  return job.wait_for_errors("the job goes on with " + std::to_string(left) + " of 3 workers\n", kBound);
}

pid_t process_of(const Child& job, const std::string& task) {
  const std::string text = "[" + task + "] is process ";
  EXPECT_TRUE(job.wait_for_output(text, kBound)) << job.errors();
  const std::string output = job.output();
  return std::stoi(output.substr(output.find(text) + text.size()));
}

TEST(WorkerFailures, TheJobGoesOnWithoutAWorkerThatIsKilled) {
  const Gate gate;
  Child job(job_of("[ $task != worker:1 ] || { echo before its end >&2; kill -9 $$; }; " + gate.pass() + kFinishes));
  EXPECT_TRUE(has_seen_failure(job, 2)) << job.errors();
  gate.open();
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
  const Gate gate;
  Child job(job_of("echo is process $$; case $task in worker:1) " + kStays + ";; *) " + gate.pass() + ";; esac"));
  const pid_t worker = process_of(job, "worker:1");
  ASSERT_EQ(::kill(worker, SIGKILL), 0);
  EXPECT_TRUE(has_seen_failure(job, 2)) << job.errors();
  gate.open();
  EXPECT_EQ(job.wait(kBound), 0) << job.errors();
  EXPECT_THAT(job.errors(), HasSubstr("(worker:1, pid " + std::to_string(worker) + ") was killed by signal 9"));
  EXPECT_TRUE(job.nothing_left());
}

TEST(WorkerFailures, WithoutTheFlagTheFirstFailureEndsTheJob) {
  const Gate closed;
  Child job(job_of("[ $task != worker:1 ] || exit 3; " + closed.pass() + kFinishes, /*allows=*/false));
  EXPECT_EQ(job.wait(kBound), 3) << job.errors();
  EXPECT_THAT(job.output(), Not(HasSubstr("has finished")));
  EXPECT_TRUE(job.nothing_left());
}

TEST(WorkerFailures, AServerThatFailsEndsTheJob) {
  Child job(job_of("[ $task != ps:1 ] || exit 4; " + kStays));
  EXPECT_EQ(job.wait(kBound), 4) << job.errors();
  EXPECT_THAT(job.errors(), AllOf(HasSubstr("(ps:1, pid "), HasSubstr("exited with code 4")));
  EXPECT_TRUE(job.nothing_left());
}

// A worker that failed long before is not the cause of a server's failure. The others end when lockrun ends them.
TEST(WorkerFailures, AServerIsTheCauseAfterAWorkersFailure) {
  const Gate gate;
  Child job(job_of("[ $task != worker:0 ] || exit 7; trap 'exit 75' TERM; " + gate.pass() +
                   "[ $task != ps:0 ] || kill -9 $$; " + kStays));
  EXPECT_TRUE(has_seen_failure(job, 2)) << job.errors();
  gate.open();
  EXPECT_EQ(job.wait(kBound), 128 + SIGKILL) << job.errors();
  EXPECT_THAT(job.errors(), AllOf(HasSubstr("exited with code 7: the job goes on with 2 of 3 workers"),
                                  HasSubstr("(ps:0, pid "), HasSubstr("was killed by signal 9")));
  EXPECT_TRUE(job.nothing_left());
}

// The servers' program does not go on without a worker.
TEST(WorkerFailures, AWorkerIsTheCauseIfServersHaveOnlyLostIt) {
  const Gate gate;
  Child job(job_of("case $task in worker:2) exit 5;; ps:*) " + gate.pass() + "exit 75;; *) " + kStays + ";; esac"));
  EXPECT_TRUE(has_seen_failure(job, 2)) << job.errors();
  gate.open();
  EXPECT_EQ(job.wait(kBound), 5) << job.errors();
  EXPECT_THAT(job.errors(), AllOf(HasSubstr("(worker:2, pid "), HasSubstr("exited with code 5")));
  EXPECT_TRUE(job.nothing_left());
}

TEST(WorkerFailures, TheLastWorkersFailureEndsTheJob) {
  const Gate gate;
  Child job(job_of("case $task in worker:0) exit 6;; worker:*) " + gate.pass() + "exit 8;; *) " + kStays + ";; esac"));
  EXPECT_TRUE(has_seen_failure(job, 2)) << job.errors();
  gate.open();
  EXPECT_EQ(job.wait(kBound), 6) << job.errors();
  EXPECT_THAT(job.errors(), HasSubstr("(worker:0, pid "));
  EXPECT_TRUE(job.nothing_left());
}

TEST(WorkerFailures, AWorkerThatHasEndedWellIsLeft) {
  const Gate workers, servers;
  Child job(job_of("echo is process $$; case $task in worker:0) exit 0;; worker:*) " + workers.pass() + "exit 8;; *) " +
                   servers.pass() + ";; esac"));
  const pid_t first = process_of(job, "worker:0");
  ASSERT_TRUE(poll_until([&] { return ::kill(first, 0) != 0; }, kBound)) << "lockrun has taken its exit code";
  workers.open();
  EXPECT_TRUE(has_seen_failure(job, 1)) << job.errors();
  servers.open();
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

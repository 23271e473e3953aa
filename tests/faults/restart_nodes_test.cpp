// Jobs that end early on request, and restarts of jobs on several nodes.
#include <gmock/gmock.h>

#include <csignal>
#include <memory>
#include <thread>

#include "lockstep/core/error.h"
#include "tests/faults/node_job.h"
#include "tests/faults/rank_process.h"
#include "tests/faults/restart_job.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// -- preemption: the ranks save and leave on request

TEST_F(Restart, RanksThatLoseOneThatHasSavedAndLeftArePreemptedToo) {
  Child job(this->job(2, {"--max-restarts", "2"}, {"sh", "-c", "[ $RANK = 0 ] && exit 85; sleep 0.2; exit 75"}));
  EXPECT_EQ(job.wait(kLong), kPreemptedExitCode) << job.errors();
  EXPECT_EQ(report()["attempts"].size(), 1U);
  EXPECT_THAT(job.errors(), HasSubstr("had saved and left with code 85"));
}

class Preemption : public Restart, public ::testing::WithParamInterface<const char*> {};

TEST_P(Preemption, AllRanksSaveTheSameStepAndTheNextJobHasTheSameBits) {
  const std::string way = GetParam(), expected = undisturbed_weights(2);
  Child job(this->job(2, {"--max-restarts", "9"}, training(way, {"preempt=1", "pause_ms=50"})));
  ASSERT_TRUE(job.wait_for_output("rank 0 of 2 is running")) << job.errors();
  ASSERT_TRUE(job.wait_for_output("rank 1 of 2 is running")) << job.errors();
  if (way == "TERM_to_lockrun") job.signal(SIGTERM);
  if (way == "USR2_to_lockrun") job.signal(SIGUSR2);
  if (way.ends_with("_to_rank")) {
    const pid_t rank = process_of_rank(job, 1);
    ASSERT_GT(rank, 0);
    ASSERT_EQ(::kill(rank, way == "TERM_to_rank" ? SIGTERM : SIGUSR2), 0);
  }
  EXPECT_EQ(job.wait(kLong), kPreemptedExitCode) << job.errors();
  EXPECT_THAT(job.errors(), Not(HasSubstr("restarts the job")));
  EXPECT_TRUE(job.nothing_left());
  const nlohmann::json attempt = report()["attempts"][0];
  EXPECT_EQ(attempt["end"], "preempted");
  EXPECT_EQ(attempt["saved_step"], attempt["step"]) << "no step is lost";
  Child next(this->job(2, {}, training(way, {"preempt=1"})));
  EXPECT_EQ(next.wait(kLong), 0) << next.errors();
  EXPECT_EQ(weights_in(next.output()), expected);
}
INSTANTIATE_TEST_SUITE_P(Ways, Preemption,
                         ::testing::Values("TERM_to_lockrun", "USR2_to_lockrun", "TERM_to_rank", "USR2_to_rank"));

TEST_F(Restart, AProgramThatDoesNotAskEndsBySignalsAsBefore) {
  Child job(this->job(2, {}, training("plain", {"steps=1000000", "pause_ms=5"})));
  ASSERT_TRUE(job.wait_for_output("is running")) << job.errors();
  const pid_t rank = process_of_rank(job, 1);
  ASSERT_EQ(::kill(rank, SIGTERM), 0);
  EXPECT_EQ(job.wait(kLong), 128 + SIGTERM) << job.errors();
}

TEST_F(Restart, TheGracePeriodIsTheRanksTimeToSave) {
  Child job({LOCKRUN, "-n", "1", "--grace-period", "60", "sh", "-c",
             "trap 'sleep 6; echo saved; exit 85' TERM; echo is running; while true; do sleep 0.05; done"});
  ASSERT_TRUE(job.wait_for_output("is running")) << job.errors();
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(kLong), kPreemptedExitCode) << job.errors();
  EXPECT_THAT(job.output(), HasSubstr("saved"));
}

TEST_F(Restart, AllNodesArePreemptedTogether) {
  Words command = {"--grace-period", "30"};
  const Words program = training("nodes", {"steps=1000000", "preempt=1", "pause_ms=5"});
  command.insert(command.end(), program.begin(), program.end());
  NodeJob job({2, 1}, command);
  ASSERT_TRUE(job.is_training()) << job[0].errors();
  job[1].signal(SIGTERM);
  for (int node = 0; node < 2; ++node) EXPECT_EQ(job[node].wait(kLong), kPreemptedExitCode) << job[node].errors();
}

TEST_F(Restart, AllNodesRestartTogether) {
  const std::string expected = undisturbed_weights(3);
  Words command = {"--max-restarts", "3"};
  const Words program = training("nodes", {"fail_rank=2", "fail_at=13", "how=kill", "fail_attempts=1"});
  command.insert(command.end(), program.begin(), program.end());
  NodeJob job({2, 1}, command);
  for (int node = 0; node < 2; ++node) {
    EXPECT_EQ(job[node].wait(kLong), 0) << job[node].errors();
    EXPECT_EQ(weights_in(job[node].output()), expected);
    EXPECT_THAT(job[node].errors(), HasSubstr("lockrun: restarts the job: attempt 1 of at most 3"));
  }
  EXPECT_THAT(job[0].errors(), HasSubstr("failed at step 13: rank 2 was killed by signal 9"));
}

TEST_F(Restart, NodeZeroDecidesForAllNodes) {
  Words command = {"--max-restarts", "9"};
  const Words program = training("nodes", {"fail_rank=2", "fail_at=12", "how=throw"});
  command.insert(command.end(), program.begin(), program.end());
  NodeJob job({2, 1}, command);
  for (int node = 0; node < 2; ++node) EXPECT_EQ(job[node].wait(kLong), 1) << job[node].errors();
  EXPECT_THAT(job[0].errors(), HasSubstr("no restart: the same failure has ended two attempts at step 12, 0 and 1"));
}

class RestartOfNodes : public Restart {
 protected:
  std::unique_ptr<Child> start(int node, const Words& program) const {
    return start_restarting_node(node, port_, node == 0 ? Words{"--report", report_file()} : Words(), program);
  }

 private:
  std::string port_ = free_port();
};

TEST_F(RestartOfNodes, ALostNodeThatComesBackTakesPart) {
  const std::string expected = undisturbed_weights(3);
  for (const int lost : {1, 0}) {
    SCOPED_TRACE(lost == 0 ? "node 0 is lost" : "node 1 is lost");
    fs::remove_all(folder() + "/lost");
    const Words program = training("lost", {"gate_at=13", "gate=" + folder() + "/gate"});
    std::vector<std::unique_ptr<Child>> nodes;
    for (int node = 0; node < 2; ++node) nodes.push_back(start(node, program));
    for (const auto& node : nodes) ASSERT_TRUE(node->wait_for_output("waits")) << node->errors();
    const auto place = static_cast<std::size_t>(lost);
    nodes[place]->signal(SIGKILL);
    EXPECT_EQ(nodes[place]->wait(kLong), 128 + SIGKILL);
    nodes[place] = start(lost, program);
    for (const auto& node : nodes) {
      EXPECT_EQ(node->wait(kLong), 0) << node->errors();
      EXPECT_EQ(weights_in(node->output()), expected);
    }
    EXPECT_THAT(nodes[0]->output() + nodes[0]->errors(), HasSubstr(lost == 0 ? "did 23 steps" : "attempt 1 at"))
        << "the number of the attempt goes on, also if node 0 has forgotten it";
    EXPECT_EQ(report()["attempts"].back()["attempt"], 1);
  }
}

TEST_F(RestartOfNodes, ASignalWhileNodesMeetAgainEndsTheJob) {
  const Words program = training("meet", {"gate_at=13", "gate=" + folder() + "/gate"});
  const auto zero = start(0, program), one = start(1, program);
  for (const Child* node : {zero.get(), one.get()}) ASSERT_TRUE(node->wait_for_output("waits")) << node->errors();
  one->signal(SIGKILL);
  EXPECT_EQ(one->wait(kLong), 128 + SIGKILL);
  for (int i = 0; i < 4000 && zero->errors().find("restarts the job") == std::string::npos; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  zero->signal(SIGUSR2);  // a notice, for which there is no rank
  zero->signal(SIGTERM);
  EXPECT_EQ(zero->wait(kLong), 128 + SIGTERM) << zero->errors();
  EXPECT_THAT(zero->errors(), HasSubstr("lockrun: SIGTERM: no restart"));
  EXPECT_EQ(report()["attempts"][0]["end"], "interrupted");
}

// The signal comes after the failure, while the other node ends its ranks to restart.
TEST_F(RestartOfNodes, ANodeThatIsInterruptedTellsTheOthers) {
  for (const int interrupted : {0, 1}) {
    SCOPED_TRACE(interrupted);
    const std::string gate = folder() + "/fail" + std::to_string(interrupted);
    const Words fails = {"sh", "-c", "for i in $(seq 3000); do [ -e " + gate + " ] && exit 5; sleep 0.01; done"};
    const Words stays = {"sh", "-c", "trap 'echo got TERM' TERM; echo is up; while true; do sleep 0.05; done"};
    const auto zero = start(0, interrupted == 0 ? stays : fails), one = start(1, interrupted == 1 ? stays : fails);
    Child &target = interrupted == 0 ? *zero : *one, &other = interrupted == 0 ? *one : *zero;
    ASSERT_TRUE(target.wait_for_output("is up")) << target.errors();
    std::ofstream(gate) << "now";
    ASSERT_TRUE(target.wait_for_output("got TERM")) << target.errors();
    target.signal(SIGTERM);
    EXPECT_NE(target.wait(kLong), 0);
    EXPECT_EQ(other.wait(std::chrono::seconds(40)), 5) << other.errors();
    EXPECT_THAT(target.errors(), HasSubstr("no restart: this lockrun was interrupted"));
    EXPECT_THAT(other.errors(), HasSubstr("lockrun on node " + std::to_string(interrupted) + " was interrupted"));
  }
}

TEST_F(RestartOfNodes, ExitCode85OfOneRankIsThatOfAllLockruns) {
  for (const int leaves : {0, 1}) {
    const auto program = [&](int node) { return Words{"sh", "-c", node == leaves ? "exit 85" : "exit 0"}; };
    const auto zero = start(0, program(0)), one = start(1, program(1));
    for (const Child* node : {zero.get(), one.get()})
      EXPECT_EQ(const_cast<Child*>(node)->wait(kLong), kPreemptedExitCode) << node->errors();
    EXPECT_EQ(report()["attempts"][0]["end"], "preempted");
  }
}

TEST_F(Restart, ANodeThatDoesNotComeBackEndsTheJob) {
  Words command = {"--max-restarts", "3"};
  const Words program = training("gone", {"steps=1000000", "pause_ms=5"});
  command.insert(command.end(), program.begin(), program.end());
  NodeJob job({1, 1}, command, {{"LOCKSTEP_STORE_TIMEOUT_S", "8"}});
  ASSERT_TRUE(job.is_training()) << job[0].errors();
  job[1].signal(SIGKILL);
  EXPECT_EQ(job[0].wait(kLong), kPeerLostExitCode) << job[0].errors();
  EXPECT_THAT(job[0].errors(),
              AllOf(HasSubstr("node 1 on host"), HasSubstr("lockrun: no restart: node 0: node 1 of 2")));
}

}  // namespace
}  // namespace lockstep::testing

// lockrun --max-restarts with real ranks: a job that has failed goes on from its checkpoint and ends with the weights
// of an undisturbed run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "lockstep/core/error.h"
#include "tests/faults/node_job.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

constexpr std::chrono::seconds kLong(60);

class Restart : public ::testing::Test {
 protected:
  Restart() {
    std::string pattern = ::testing::TempDir() + "lockstep-restart-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~Restart() override { fs::remove_all(folder_); }

  std::string folder() const { return folder_; }
  std::string report_file() const { return folder_ + "/report.json"; }
  nlohmann::json report() const { return nlohmann::json::parse(std::ifstream(report_file())); }

  Words training(const std::string& checkpoints, const Words& arguments) const {
    Words words = {TRAINING_RANK, "steps=23",   "save_every=5",
                   "resume=1",    "metrics=10", "folder=" + folder_ + "/" + checkpoints};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return words;
  }
  // On one node, with these flags of lockrun.
  Words job(int ranks, const Words& flags, const Words& command) const {
    Words words = {LOCKRUN, "--no-fold", "-n", std::to_string(ranks), "--report", report_file()};
    words.insert(words.end(), flags.begin(), flags.end());
    words.insert(words.end(), command.begin(), command.end());
    return words;
  }
  // The hash of rank 0's weights at the end of a training.
  static std::string weights_in(const std::string& output) {
    const std::size_t begin = output.find("weights ");
    return begin == std::string::npos ? "none: " + output : output.substr(begin, output.find('\n', begin) - begin);
  }
  std::string undisturbed_weights(int ranks) const {
    Child job(this->job(ranks, {}, training("undisturbed", {})));
    EXPECT_EQ(job.wait(kLong), 0) << job.errors();
    return weights_in(job.output());
  }

 private:
  std::string folder_;
};

// The process of that rank, once it exists.
pid_t process_of_rank(const Child& job, int rank) {
  const std::string entry = '\0' + ("RANK=" + std::to_string(rank)) + '\0';
  for (int i = 0; i < 2000 && !job.has_ended(); ++i, std::this_thread::sleep_for(std::chrono::milliseconds(5)))
    for (const pid_t pid : job.alive()) {
      std::ifstream file("/proc/" + std::to_string(pid) + "/environ", std::ios::binary);
      if (('\0' + std::string(std::istreambuf_iterator<char>(file), {})).find(entry) != std::string::npos) return pid;
    }
  return -1;
}

TEST_F(Restart, AJobGoesOnFromItsCheckpointWithTheSameBits) {
  const std::string expected = undisturbed_weights(2);
  for (const std::string how : {"kill", "exit:3", "throw", "segv"}) {
    SCOPED_TRACE(how);
    Child job(this->job(2, {"--max-restarts", "2"},
                        training(how, {"fail_rank=1", "fail_at=13", "how=" + how, "fail_attempts=1"})));
    EXPECT_EQ(job.wait(kLong), 0) << job.errors();
    EXPECT_EQ(weights_in(job.output()), expected);
    EXPECT_THAT(job.errors(),
                AllOf(HasSubstr("lockrun: restarts the job: attempt 1 of at most 2\n"),
                      HasSubstr("lockrun: 2 attempts, exit code 0\n"), HasSubstr("from step 10: finished")));
    EXPECT_TRUE(job.nothing_left());
    const nlohmann::json all = report()["attempts"];
    ASSERT_EQ(all.size(), 2U);
    EXPECT_EQ(all[0]["resumed_step"], nullptr);
    EXPECT_EQ(all[0]["saved_step"], 10);
    EXPECT_EQ(all[0]["step"], 13);
    EXPECT_EQ(all[0]["first_failure"]["rank"], 1);
    EXPECT_EQ(all[0]["first_failure"]["exception"], how == "throw" ? "this rank has had enough" : "");
    EXPECT_EQ(all[0]["consequences"], nlohmann::json({0}));
    EXPECT_EQ(all[1]["resumed_step"], 10);
    EXPECT_EQ(all[1]["step"], 23);
    EXPECT_EQ(all[1]["end"], "finished");
  }
}

TEST_F(Restart, TheLimitEndsAJobThatFailsAtEverAnotherStep) {
  Child job(this->job(2, {"--max-restarts", "2"}, training("limit", {"fail_rank=0", "fail_later=4", "how=exit:7"})));
  EXPECT_EQ(job.wait(kLong), 7) << job.errors();
  EXPECT_THAT(job.errors(), AllOf(HasSubstr("attempt 1 of at most 2"), HasSubstr("attempt 2 of at most 2"),
                                  HasSubstr("lockrun: 3 attempts, exit code 7"), Not(HasSubstr("no restart"))));
  EXPECT_TRUE(job.nothing_left());
}

TEST_F(Restart, TheSameFailureTwiceEndsTheJob) {
  Child before_first_checkpoint(
      this->job(2, {"--max-restarts", "9"}, training("early", {"fail_rank=1", "fail_at=2", "how=throw"})));
  EXPECT_EQ(before_first_checkpoint.wait(kLong), 1);
  EXPECT_THAT(before_first_checkpoint.errors(),
              HasSubstr("lockrun: no restart: the same failure has ended two attempts at step 2, 0 and 1"));
  Child after(this->job(2, {"--max-restarts", "9"}, training("late", {"fail_rank=1", "fail_at=12", "how=throw"})));
  EXPECT_EQ(after.wait(kLong), 1);
  EXPECT_THAT(after.errors(), HasSubstr("the same failure has ended two attempts at step 12, 0 and 1"));
  EXPECT_EQ(report()["attempts"].size(), 2U);
}

TEST_F(Restart, MistakesAndSignalsEndTheJobAtOnce) {
  Child not_found(this->job(2, {"--max-restarts", "9"}, {"no-such-program"}));
  EXPECT_EQ(not_found.wait(kLong), 127);
  Child wrong_argument(this->job(2, {"--max-restarts", "9"}, {TRAINING_RANK, "steps"}));
  EXPECT_EQ(wrong_argument.wait(kLong), 2);
  EXPECT_THAT(wrong_argument.errors(), HasSubstr("lockrun: no restart: rank"));
  Child interrupted(this->job(2, {"--max-restarts", "9"}, training("signal", {"steps=1000000", "pause_ms=5"})));
  ASSERT_TRUE(interrupted.wait_for_output("is running")) << interrupted.errors();
  interrupted.signal(SIGTERM);
  EXPECT_EQ(interrupted.wait(kLong), 128 + SIGTERM) << interrupted.errors();
  EXPECT_THAT(interrupted.errors(), Not(HasSubstr("restarts the job")));
  EXPECT_EQ(report()["attempts"][0]["end"], "interrupted");
  EXPECT_TRUE(interrupted.nothing_left());
}

TEST_F(Restart, TheReportIsAFileThatCanBeWritten) {
  const auto refusal_of = [](const std::string& path) {
    Child job({LOCKRUN, "-n", "1", "--report", path, "true"});
    EXPECT_EQ(job.wait(), 2);
    return job.errors();
  };
  EXPECT_THAT(refusal_of(folder() + "/missing/report.json"),
              HasSubstr("--report " + folder() + "/missing/report.json: the file cannot be written"));
  EXPECT_THAT(refusal_of("/dev/null"), HasSubstr("--report /dev/null: it is not a regular file"));
  EXPECT_THAT(refusal_of(folder()), HasSubstr("is not a regular file"));
  ASSERT_EQ(::mkfifo((folder() + "/pipe").c_str(), 0600), 0);
  EXPECT_THAT(refusal_of(folder() + "/pipe"), HasSubstr("is not a regular file"));
  std::ofstream(folder() + "/target.json") << "old";
  fs::create_symlink(folder() + "/target.json", folder() + "/link.json");
  Child job({LOCKRUN, "-n", "1", "--report", folder() + "/link.json", "true"});
  EXPECT_EQ(job.wait(), 0) << job.errors();
  EXPECT_TRUE(fs::is_symlink(folder() + "/link.json"));
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(folder() + "/target.json"))["attempts"].size(), 1U);
}

// It is not known how far a program has come that does not use Lockstep.
TEST_F(Restart, AnyProgramIsRestartedAsOftenAsAskedFor) {
  Child job(this->job(1, {"--max-restarts", "2"}, {"sh", "-c", "exit 1"}));
  EXPECT_EQ(job.wait(kLong), 1);
  const nlohmann::json all = report()["attempts"];
  ASSERT_EQ(all.size(), 3U) << job.errors();
  EXPECT_EQ(all[0]["step"], nullptr);
  EXPECT_THAT(job.errors(), HasSubstr("attempt 2 of at most 2, in 1 s"));
}

// The progress of a program that a rank starts is not the rank's, and what an attempt leaves notes nothing in the next.
TEST_F(Restart, ProgressIsTheRanksOwn) {
  std::ofstream(folder() + "/rank.sh") << "cd " << folder() << "\n"
                                       << "env -i LOCKSTEP_PROGRESS=$LOCKSTEP_PROGRESS " << TRAINING_RANK
                                       << " steps=3 metrics=10 >first.txt\n"
                                       << "exec " << TRAINING_RANK << " steps=5 metrics=10\n";
  Child job(this->job(1, {}, {"sh", folder() + "/rank.sh"}));
  EXPECT_EQ(job.wait(kLong), 0) << job.errors();
  EXPECT_EQ(report()["attempts"][0]["step"], 5) << "the first program has ended";
}

// The first attempt leaves a process that joins the second one's store, on the same port and with the same token.
TEST_F(Restart, ARankOfAnEarlierAttemptIsRefused) {
  std::ofstream(folder() + "/late.sh") << "cd " << folder() << "\n"
                                       << "touch ready; for i in $(seq 3000); do [ -e go ] && break; sleep 0.01; done\n"
                                       << COLLECTIVE_RANK << " >late 2>&1; touch done\n";
  std::ofstream(folder() + "/rank.sh") << "cd " << folder() << "\n"
                                       << "if [ $LOCKSTEP_RESTART_COUNT = 0 ]; then\n"
                                       << "  setsid sh late.sh >/dev/null 2>&1 </dev/null &\n"
                                       << "  while [ ! -e ready ]; do sleep 0.01; done; exit 9\n"
                                       << "fi\n"
                                       << "touch go; for i in $(seq 3000); do [ -e done ] && break; sleep 0.01; done\n";
  Child job(this->job(1, {"--max-restarts", "1"}, {"sh", folder() + "/rank.sh"}));
  EXPECT_EQ(job.wait(kLong), 0) << job.errors();
  std::ifstream late(folder() + "/late");
  const std::string text{std::istreambuf_iterator<char>(late), {}};
  EXPECT_THAT(text,
              HasSubstr("serves another attempt of this job, and this process belongs to attempt 0, which has ended"));
}

TEST_F(Restart, RanksFindTheirAttemptAndKeepThePorts) {
  Child job({LOCKRUN, "-n", "1", "--no-prefix", "--max-restarts", "3", "sh", "-c",
             "echo at $LOCKSTEP_RESTART_COUNT of $LOCKSTEP_MAX_RESTARTS: $MASTER_PORT $LOCKSTEP_STORE_PORT "
             "$LOCKSTEP_TOKEN; exit $((3 + LOCKSTEP_RESTART_COUNT))"});
  EXPECT_EQ(job.wait(kLong), 6) << job.errors();
  const std::string output = job.output(), first = output.substr(0, output.find('\n'));
  const std::string ports = first.substr(first.find(':'));
  for (int attempt = 0; attempt < 4; ++attempt)
    EXPECT_THAT(output, HasSubstr("at " + std::to_string(attempt) + " of 3" + ports + "\n"));
  Child without({LOCKRUN, "-n", "1", "--no-prefix", "sh", "-c", "echo \"<$LOCKSTEP_RESTART_COUNT>\""});
  EXPECT_EQ(without.wait(), 0);
  EXPECT_EQ(without.output(), "<>\n");
}

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

// Two nodes, which the test starts, kills and starts again as a supervisor such as systemd would.
class RestartOfNodes : public Restart {
 protected:
  std::unique_ptr<Child> start(int node, const Words& program, const std::string& patience = "60") const {
    Words words = {LOCKRUN,
                   "--no-fold",
                   "-n",
                   node == 0 ? "2" : "1",
                   "--nnodes",
                   "2",
                   "--node-rank",
                   std::to_string(node),
                   "--master-addr",
                   "127.0.0.1",
                   "--master-port",
                   port_,
                   "--max-restarts",
                   "3"};
    if (node == 0) words.insert(words.end(), {"--report", report_file()});
    words.insert(words.end(), program.begin(), program.end());
    return std::make_unique<Child>(words, ChildOptions{.environment = {{"LOCKSTEP_TOKEN", "a token of this test"},
                                                                       {"LOCKSTEP_STORE_TIMEOUT_S", patience},
                                                                       {"LOCKSTEP_NODE", std::to_string(node)}}});
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

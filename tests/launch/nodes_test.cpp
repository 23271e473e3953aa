// Several lockruns as the nodes of one job, with real processes: on this machine, each with its own --node-rank, all on loopback.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/faults/hand_job.h"

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

// Failures on other nodes are to be known within seconds, a lost node within 10 s; the rest is for a loaded machine.
constexpr milliseconds kSoon(10'000), kLost(15'000), kSlow(30'000);
constexpr const char* kGone = " is gone: the connection to its lockrun (pid ";

Words acts(const Words& words) {
  Words command = {RANK_PROGRAM};
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

class Job {
 public:
  explicit Job(int nodes, Environment environment = {}, std::string host = "127.0.0.1")
      : nodes_(nodes), environment_(std::move(environment)), host_(std::move(host)) {}

  Child& start(int node, int ranks, const Words& program, Environment extra = {}, const Words& flags = {}) {
    Words words = {
        LOCKRUN, "--nnodes", std::to_string(nodes_), "--node-rank", std::to_string(node), "--master-addr", host_, "--master-port",
        port_,   "-n",       std::to_string(ranks)};
    words.insert(words.end(), flags.begin(), flags.end());
    words.insert(words.end(), program.begin(), program.end());
    extra.insert(environment_.begin(), environment_.end());
    return children_.emplace_back(words, ChildOptions{.environment = std::move(extra)});
  }
  const std::string& port() const { return port_; }

 private:
  int nodes_;
  Environment environment_;
  std::string host_, port_ = free_port();
  std::deque<Child> children_;
};

std::string file(const std::string& name) { return ::testing::TempDir() + "lockstep-nodes-" + std::to_string(::getpid()) + "-" + name; }

TEST(Nodes, UnequalNodesAreNumberedInOrderWhoeverComesFirst) {
  Job job(3);
  const Words program = acts({"env:RANK+env:LOCAL_RANK+env:WORLD_SIZE+env:LOCAL_WORLD_SIZE+env:GROUP_RANK+env:NODE_RANK"});
  Child& last = job.start(2, 1, program);
  Child& zero = job.start(0, 2, program);
  Child& one = job.start(1, 3, program);
  for (Child* node : {&zero, &one, &last}) EXPECT_EQ(node->wait(kSlow), 0) << node->errors();
  EXPECT_THAT(zero.output(),
              AllOf(HasSubstr("[1] RANK=1\n[1] LOCAL_RANK=1\n[1] WORLD_SIZE=6\n[1] LOCAL_WORLD_SIZE=2\n[1] GROUP_RANK=0\n")));
  EXPECT_THAT(one.output(), AllOf(HasSubstr("[2] RANK=2\n[2] LOCAL_RANK=0\n[2] WORLD_SIZE=6\n[2] LOCAL_WORLD_SIZE=3\n[2] GROUP_RANK=1\n"),
                                  HasSubstr("[4] LOCAL_RANK=2\n")));
  EXPECT_THAT(last.output(),
              HasSubstr("[5] RANK=5\n[5] LOCAL_RANK=0\n[5] WORLD_SIZE=6\n[5] LOCAL_WORLD_SIZE=1\n[5] GROUP_RANK=2\n[5] NODE_RANK=2\n"));
  EXPECT_THAT(zero.errors(), HasSubstr("lockrun: 6 ranks on 3 nodes: "));
}

TEST(Nodes, TheirRanksMeetAndAgree) {
  for (const char* host : {"127.0.0.1", "localhost", "::1"}) {
    Job job(2, {{"LOCKSTEP_TOKEN", "a shared secret"}}, host);
    Child& one = job.start(1, 1, collective_rank({"steps=20"}));
    Child& zero = job.start(0, 2, collective_rank({"steps=20"}));
    EXPECT_EQ(zero.wait(kSlow), 0) << host << zero.errors();
    EXPECT_EQ(one.wait(kSlow), 0) << host << one.errors();
    EXPECT_THAT(zero.output(), HasSubstr("rank 1 of 3 did 20 steps"));
    EXPECT_THAT(one.output(), HasSubstr("rank 2 of 3 did 20 steps"));
  }
}

TEST(Nodes, NodeZeroKeepsTheStoreUntilAllHaveFinished) {
  Job job(2);
  Child& zero = job.start(0, 1, acts({"out:short"}));
  Child& one = job.start(1, 1, acts({"sleep:1500+out:long"}));
  ASSERT_TRUE(zero.wait_for_output("short")) << zero.errors();
  std::this_thread::sleep_for(milliseconds(500));
  EXPECT_FALSE(zero.alive().empty()) << "left before the other node";
  EXPECT_EQ(one.wait(kSlow), 0) << one.errors();
  EXPECT_EQ(zero.wait(kSoon), 0) << zero.errors();
  EXPECT_THAT(one.output(), HasSubstr("[1] long"));
}

TEST(Nodes, AFailureAnywhereEndsAllWithTheSameCauseAndCode) {
  for (const int guilty : {0, 1, 2}) {
    Job job(3);
    std::deque<Child*> nodes;
    for (int node = 0; node < 3; ++node)
      nodes.push_back(&job.start(node, 1, acts({node == guilty ? "sleep:300+err:the reason+exit:7" : "out:up+flush+hang"})));
    for (int node = 0; node < 3; ++node) {
      Child& lockrun = *nodes[static_cast<std::size_t>(node)];
      EXPECT_EQ(lockrun.wait(kSlow), 7) << lockrun.errors();
      EXPECT_THAT(lockrun.errors(),
                  AllOf(HasSubstr("lockrun: rank " + std::to_string(guilty) + " (pid "),
                        HasSubstr(", node " + std::to_string(guilty) + " on host "), HasSubstr(") exited with code 7\n")));
      if (node == guilty)
        EXPECT_THAT(lockrun.errors(), HasSubstr("its last lines on stderr:\n    the reason\n"));
      else
        EXPECT_THAT(lockrun.errors(),
                    AllOf(HasSubstr("its last lines stand in the output of the lockrun of node " + std::to_string(guilty)),
                          Not(HasSubstr("the reason"))));
      EXPECT_TRUE(lockrun.nothing_left());
    }
  }
}

TEST(Nodes, TheCauseIsFoundBehindItsConsequenceOnAnotherNode) {
  Job job(2);
  Child& zero = job.start(0, 2, acts({"lost:rank 2 is gone"}));
  Child& one = job.start(1, 2, acts({"out", "out", "sleep:1500+kill", "hang"}));
  for (Child* node : {&zero, &one}) {
    EXPECT_EQ(node->wait(kSlow), 128 + SIGKILL) << node->errors();
    EXPECT_THAT(node->errors(), AllOf(HasSubstr("lockrun: rank 2 (pid "), HasSubstr("was killed by signal 9")));
  }
}

TEST(Nodes, OnlyConsequencesAreSaidToBeThat) {
  Job job(2);
  Child& zero = job.start(0, 1, acts({"lost:gone"}));
  Child& one = job.start(1, 1, acts({"hang"}));
  for (Child* node : {&zero, &one}) {
    EXPECT_EQ(node->wait(kSlow), 75) << node->errors();
    EXPECT_THAT(node->errors(), HasSubstr("no rank failed by itself"));
  }
}

TEST(Nodes, AKilledLockrunEndsTheJobAndLeavesNothing) {
  for (const int killed : {0, 1}) {
    Job job(2);
    Child* nodes[] = {&job.start(0, 2, acts({"daemon+out:up+flush+hang"})), &job.start(1, 2, acts({"daemon+out:up+flush+hang"}))};
    for (Child* node : nodes) ASSERT_TRUE(node->wait_for_output("up")) << node->errors();
    nodes[killed]->signal(SIGKILL);
    EXPECT_EQ(nodes[killed]->wait(), 137);
    EXPECT_TRUE(nodes[killed]->nothing_left());
    Child& survivor = *nodes[1 - killed];
    EXPECT_EQ(survivor.wait(kLost), 75) << survivor.errors();
    EXPECT_THAT(survivor.errors(), AllOf(HasSubstr("lockrun: node " + std::to_string(killed) + " on host "), HasSubstr(kGone)));
    EXPECT_TRUE(survivor.nothing_left());
  }
}

TEST(Nodes, ASignalToAnyLockrunEndsTheWholeJob) {
  for (const int interrupted : {0, 1}) {
    Job job(2);
    Child* nodes[] = {&job.start(0, 1, acts({"out:up+flush+sleep:60000"})), &job.start(1, 1, acts({"out:up+flush+sleep:60000"}))};
    for (Child* node : nodes) ASSERT_TRUE(node->wait_for_output("up")) << node->errors();
    nodes[interrupted]->signal(SIGINT);
    for (Child* node : nodes) {
      EXPECT_EQ(node->wait(kSoon), 128 + SIGINT) << node->errors();
      EXPECT_THAT(node->errors(), HasSubstr("lockrun: SIGINT to node " + std::to_string(interrupted) + " on host "));
      EXPECT_TRUE(node->nothing_left());
    }
  }
}

TEST(Nodes, ASignalToOneThatHasFinishedEndsTheOthersToo) {
  for (const int interrupted : {0, 1}) {
    Job job(2);
    Child* nodes[] = {&job.start(0, 1, acts({interrupted == 0 ? "out:up" : "out:up+flush+sleep:60000"})),
                      &job.start(1, 1, acts({"out", interrupted == 1 ? "out:up" : "out:up+flush+sleep:60000"}))};
    for (Child* node : nodes) ASSERT_TRUE(node->wait_for_output("up")) << node->errors();
    std::this_thread::sleep_for(milliseconds(700));
    nodes[interrupted]->signal(SIGINT);
    for (Child* node : nodes) {
      EXPECT_EQ(node->wait(kSoon), 128 + SIGINT) << node->errors();
      EXPECT_THAT(node->errors(), HasSubstr("lockrun: SIGINT to node " + std::to_string(interrupted) + " on host "));
    }
  }
}

TEST(Nodes, AProgramThatIsMissingOnOneNodeEndsAll) {
  Job job(2);
  Child& zero = job.start(0, 1, acts({"hang"}));
  Child& one = job.start(1, 1, {"/does/not/exist"});
  for (Child* node : {&zero, &one}) {
    EXPECT_EQ(node->wait(kSoon), 127) << node->errors();
    EXPECT_THAT(node->errors(), HasSubstr("lockrun: cannot run '/does/not/exist': no such file, on node 1 on host "));
    EXPECT_TRUE(node->nothing_left());
  }
}

TEST(Nodes, ALockrunThatCannotStartItsRanksSaysSoOnAllNodes) {
  for (const int poor : {0, 1}) {
    Job job(2);
    const Words lockrun = {LOCKRUN,         "--nnodes", "2",  "--node-rank", std::to_string(poor), "--master-addr", "127.0.0.1",
                           "--master-port", job.port(), "-n", "20",          RANK_PROGRAM,         "hang"};
    Words command = {"sh", "-c", "ulimit -n 30 && exec \"$@\"", "sh"};
    command.insert(command.end(), lockrun.begin(), lockrun.end());
    Child guilty(command);
    Child& other = job.start(1 - poor, 1, acts({"hang"}));
    for (Child* node : {&guilty, &other}) {
      EXPECT_EQ(node->wait(kSlow), 1) << node->errors();
      EXPECT_THAT(node->errors(), HasSubstr("Too many open files"));
      EXPECT_TRUE(node->nothing_left());
    }
    EXPECT_THAT(other.errors(), HasSubstr("lockrun: node " + std::to_string(poor) + " on host "));
  }
}

Environment gpus(const std::string& machine) {
  return {{"LOCKSTEP_DEVICE", "auto"}, {"LOCKSTEP_CUDA_LIBRARY", FAKE_CUDA_LIBRARY}, {"FAKE_CUDA", machine}};
}

TEST(Nodes, EachGivesItsOwnGpusToItsRanks) {
  Job job(2, {{"LOCKSTEP_TOKEN", "secret"}});
  const Words program = acts({"env:RANK+env:LOCKSTEP_DEVICE+env:LOCKSTEP_SHARE_GPU"});
  Child& zero = job.start(0, 2, program, gpus("two"));
  Child& one = job.start(1, 2, program, gpus("two"), {"--gpus", "1", "--share-gpu", "2"});
  EXPECT_EQ(zero.wait(kSlow), 0) << zero.errors();
  EXPECT_EQ(one.wait(kSlow), 0) << one.errors();
  EXPECT_THAT(zero.output(), AllOf(HasSubstr("[0] LOCKSTEP_DEVICE=cuda:0\n"), HasSubstr("[1] LOCKSTEP_DEVICE=cuda:1\n")));
  EXPECT_THAT(one.output(), AllOf(HasSubstr("[2] LOCKSTEP_DEVICE=cuda:1\n"), HasSubstr("[3] LOCKSTEP_DEVICE=cuda:1\n"),
                                  HasSubstr("[3] LOCKSTEP_SHARE_GPU=2\n")));
  EXPECT_THAT(one.errors(), HasSubstr("(ranks 2, 3)"));
}

TEST(Nodes, GpusThatCannotBeUsedOnOneEndAll) {
  Job job(2, {{"LOCKSTEP_TOKEN", "secret"}});
  Child& zero = job.start(0, 1, acts({"hang"}), gpus("no gpu"));
  Child& one = job.start(1, 1, acts({"hang"}), gpus("old driver"));
  EXPECT_EQ(one.wait(kSlow), 1) << one.errors();
  EXPECT_EQ(zero.wait(kSlow), 1) << zero.errors();
  for (const Child* node : {&zero, &one}) EXPECT_THAT(node->errors(), HasSubstr("the NVIDIA driver is for CUDA 11.4")) << node->errors();
  EXPECT_TRUE(zero.nothing_left());
}

TEST(Nodes, GpusThatAreNotThereOnOneEndAllWithTheSameCode) {
  Job job(2, {{"LOCKSTEP_TOKEN", "secret"}});
  Child& zero = job.start(0, 1, acts({"hang"}), gpus("no gpu"));
  Child& one = job.start(1, 1, acts({"hang"}), gpus("two"), {"--gpus", "7"});
  for (Child* node : {&zero, &one}) {
    EXPECT_EQ(node->wait(kSlow), 2) << node->errors();
    EXPECT_THAT(node->errors(), HasSubstr("--gpus 7: this machine shows 2 GPUs"));
  }
}

TEST(Nodes, WhatFailedHereIsToldThoughNodeZeroIsLostBeforeItJudges) {
  Job job(2);
  Child& zero = job.start(0, 1, acts({"out:up+flush+hang"}));
  Child& one = job.start(1, 1, acts({"out", "sleep:700+err:the reason+exit:9"}));
  ASSERT_TRUE(zero.wait_for_output("up")) << zero.errors();
  zero.signal(SIGSTOP);
  std::this_thread::sleep_for(milliseconds(1500));
  zero.signal(SIGKILL);
  EXPECT_EQ(zero.wait(), 137);
  EXPECT_EQ(one.wait(kLost), 75) << one.errors();
  EXPECT_THAT(one.errors(), AllOf(HasSubstr("lockrun: node 0 on host "), HasSubstr(kGone), HasSubstr(") exited with code 9\n"),
                                  HasSubstr("its last lines on stderr:\n    the reason\n")));
}

// -- mistakes ---------------------------------------------------------------------------------------------------------

TEST(NodesMistakes, AMissingNodeIsNamedWhileWaitingAndAtTheEnd) {
  Job job(3, {{"LOCKSTEP_STORE_TIMEOUT_S", "7"}});
  Child& zero = job.start(0, 1, acts({"exit:0"}));
  Child& two = job.start(2, 1, acts({"exit:0"}));
  EXPECT_EQ(zero.wait(kSlow), 1);
  EXPECT_EQ(two.wait(kSoon), 1);
  EXPECT_THAT(zero.errors(), AllOf(HasSubstr("lockrun: node 0 waits at 127.0.0.1:" + job.port() + " for node 1 (5 s of 7 s)"),
                                   HasSubstr("node 1 of 3 did not come to 127.0.0.1:" + job.port() + " within 7 s")));
  EXPECT_THAT(two.errors(), AllOf(HasSubstr("lockrun: node 2 has joined and waits for node 1"), HasSubstr("node 1 of 3 did not come")));
}

TEST(NodesMistakes, NodeZeroThatDoesNotComeIsNamed) {
  Job job(2, {{"LOCKSTEP_STORE_TIMEOUT_S", "6"}});
  Child& one = job.start(1, 1, acts({"exit:0"}));
  Job nameless(2, {{"LOCKSTEP_STORE_TIMEOUT_S", "2"}, {"LOCKSTEP_TOKEN", "t"}}, "no-such-host.invalid");
  Child& lost = nameless.start(1, 1, acts({"exit:0"}));
  EXPECT_EQ(lost.wait(kSlow), 1);
  EXPECT_THAT(lost.errors(), HasSubstr("node 0 did not answer at no-such-host.invalid:"));
  EXPECT_EQ(one.wait(kSlow), 1);
  EXPECT_THAT(one.errors(),
              AllOf(HasSubstr("lockrun: node 1 waits for node 0 at 127.0.0.1:" + job.port() + ": Connection refused (5 s of 6 s)"),
                    HasSubstr("node 0 did not answer at 127.0.0.1:" + job.port() + " within 6 s")));
}

// A container's first process is spared signals that it does not handle.
TEST(NodesMistakes, AContainersFirstProcessEndsWhileItWaits) {
  if (std::system("unshare --pid --fork true > /dev/null 2>&1") != 0) GTEST_SKIP() << "no process namespace may be made here";
  Child container({"unshare", "--pid", "--fork", LOCKRUN, "--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1",
                   "--master-port", free_port(), "-n", "1", "true"},
                  {.environment = {{"LOCKSTEP_STORE_TIMEOUT_S", "60"}}});
  std::vector<pid_t> processes;
  for (int tries = 0; tries < 2000 && processes.size() < 2; ++tries, std::this_thread::sleep_for(milliseconds(5)))
    processes = container.alive();
  ASSERT_EQ(processes.size(), 2u);
  std::this_thread::sleep_for(milliseconds(500));
  for (const pid_t process : processes)
    if (process != container.pid()) ::kill(process, SIGTERM);
  EXPECT_EQ(container.wait(kSoon), 143) << container.errors();
}

TEST(NodesMistakes, TwoLockrunsWithOneNumber) {
  Job job(3);
  Child& zero = job.start(0, 1, acts({"exit:0"}));
  Child& twin = job.start(1, 1, acts({"exit:0"}));
  std::this_thread::sleep_for(milliseconds(1000));
  Child& other = job.start(1, 1, acts({"exit:0"}));
  EXPECT_EQ(other.wait(kSoon), 1) << other.errors();
  EXPECT_THAT(other.errors(), HasSubstr("--node-rank 1 is taken: lockrun " + std::to_string(twin.pid()) + " on host "));
  Child& two = job.start(2, 1, acts({"exit:0"}));
  for (Child* node : {&zero, &twin, &two}) EXPECT_EQ(node->wait(kSlow), 0) << node->errors();
}

TEST(NodesMistakes, OtherNumbersOfNodes) {
  Job job(2, {{"LOCKSTEP_STORE_TIMEOUT_S", "5"}});
  Child& zero = job.start(0, 1, acts({"exit:0"}));
  Child other({LOCKRUN, "--nnodes", "3", "--node-rank", "1", "--master-addr", "127.0.0.1", "--master-port", job.port(), "-n", "1", "true"});
  EXPECT_EQ(other.wait(kSoon), 1);
  EXPECT_THAT(other.errors(), AllOf(HasSubstr("with --nnodes 3"), HasSubstr("with --nnodes 2")));
  EXPECT_EQ(zero.wait(kSlow), 1);
  EXPECT_THAT(zero.errors(), HasSubstr("with --nnodes 3"));
}

TEST(NodesMistakes, APortInUse) {
  Job job(2, {{"LOCKSTEP_STORE_TIMEOUT_S", "3"}});
  Child& first = job.start(0, 1, acts({"exit:0"}));
  std::this_thread::sleep_for(milliseconds(700));
  Child& second = job.start(0, 1, acts({"exit:0"}));
  EXPECT_EQ(second.wait(kSoon), 1);
  EXPECT_THAT(second.errors(), AllOf(HasSubstr("--master-port " + job.port()), HasSubstr("Address already in use")));
  first.wait(kSlow);
}

TEST(NodesMistakes, AnAddressOfAnotherMachine) {
  Job job(2, {{"LOCKSTEP_TOKEN", "secret"}}, "192.0.2.1");
  Child& zero = job.start(0, 1, acts({"exit:0"}));
  EXPECT_EQ(zero.wait(kSoon), 1);
  EXPECT_THAT(zero.errors(), AllOf(HasSubstr("--master-addr 192.0.2.1"), HasSubstr("must be an address of the machine")));
}

TEST(NodesMistakes, ALockrunThatComesTooLate) {
  Job job(2);
  Child& zero = job.start(0, 1, acts({"out:up+flush+sleep:2000"}));
  Child& one = job.start(1, 1, acts({"out:up+flush+sleep:2000"}));
  ASSERT_TRUE(zero.wait_for_output("up"));
  Child& late = job.start(1, 1, acts({"exit:0"}));
  EXPECT_EQ(late.wait(kSoon), 1);
  EXPECT_THAT(late.errors(), HasSubstr("runs already, with all its nodes"));
  EXPECT_EQ(zero.wait(kSlow), 0) << zero.errors();
  EXPECT_EQ(one.wait(kSlow), 0) << one.errors();
}

// -- the token --------------------------------------------------------------------------------------------------------

TEST(NodesToken, AnotherOneIsRefusedAndDoesNoHarm) {
  Job job(2);
  Child& zero = job.start(0, 1, acts({"exit:0"}), {{"LOCKSTEP_TOKEN", "right"}});
  Child& stranger = job.start(1, 1, acts({"exit:0"}), {{"LOCKSTEP_TOKEN", "wrong"}});
  EXPECT_EQ(stranger.wait(kSoon), 1);
  EXPECT_THAT(stranger.errors(), AllOf(HasSubstr("refuses the token"), HasSubstr("LOCKSTEP_TOKEN")));
  Child& member = job.start(1, 1, acts({"exit:0"}), {{"LOCKSTEP_TOKEN", "right"}});
  EXPECT_EQ(member.wait(kSlow), 0) << member.errors();
  EXPECT_EQ(zero.wait(kSlow), 0) << zero.errors();
  EXPECT_THAT(zero.errors(), HasSubstr("does not know the job's token"));
}

TEST(NodesToken, AcrossMachinesThereMustBeOne) {
  for (const int node : {0, 1}) {
    Job job(2, {}, "0.0.0.0");
    Child& lockrun = job.start(node, 1, acts({"exit:0"}));
    EXPECT_EQ(lockrun.wait(kSoon), 2);
    EXPECT_THAT(lockrun.errors(),
                AllOf(HasSubstr("openssl rand -hex 32"), HasSubstr("LOCKSTEP_TOKEN_FILE"), HasSubstr("LOCKSTEP_INSECURE=1")));
  }
  Job open(2, {{"LOCKSTEP_INSECURE", "1"}}, "0.0.0.0");
  Child& zero = open.start(0, 1, collective_rank({"steps=3"}));
  Child& one = open.start(1, 1, collective_rank({"steps=3"}));
  EXPECT_EQ(zero.wait(kSlow), 0) << zero.errors();
  EXPECT_EQ(one.wait(kSlow), 0) << one.errors();
}

// Every argument of every process of the job, and all that it prints.
TEST(NodesToken, StandsInNoArgumentAndNoOutput) {
  const std::string secret = "5ecret-0123456789abcdef", path = file("token");
  std::ofstream(path) << "\n  " << secret << " \n";
  Job job(2, {{"LOCKSTEP_LOG_LEVEL", "trace"}});
  const Words program = collective_rank({"steps=100000", "pause_ms=1", "fail_rank=1", "fail_at=400", "how=throw"});
  Child& zero = job.start(0, 1, program, {{"LOCKSTEP_TOKEN_FILE", path}});
  Child& one = job.start(1, 1, program, {{"LOCKSTEP_TOKEN", secret}});
  ASSERT_TRUE(zero.wait_for_output("is running")) << zero.errors();
  int looked_at = 0;
  for (Child* node : {&zero, &one})
    for (const pid_t process : node->alive()) {
      std::ifstream stream("/proc/" + std::to_string(process) + "/cmdline", std::ios::binary);
      std::stringstream words;
      words << stream.rdbuf();
      EXPECT_THAT(words.str(), Not(HasSubstr(secret)));
      ++looked_at;
    }
  EXPECT_GE(looked_at, 6) << "two lockruns, their guards and ranks";
  for (Child* node : {&zero, &one}) {
    EXPECT_EQ(node->wait(kSlow), 1);
    EXPECT_THAT(node->output() + node->errors(), Not(HasSubstr(secret)));
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace lockstep::testing

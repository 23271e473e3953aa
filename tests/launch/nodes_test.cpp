// Several lockruns as the nodes of one job, and the end of the job when one fails.
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

#include "lockstep/core/error.h"
#include "src/comm/net/socket.h"
#include "tests/faults/lockrun.h"
#include "tests/faults/output_pipe.h"
#include "tests/launch/node_job.h"
#include "tests/support/system_finds.h"

namespace lockstep::testing {
namespace {

constexpr const char* kGone = " is gone: the connection to its lockrun (pid ";

TEST(Nodes, UnequalNodesAreNumberedInOrderWhoeverComesFirst) {
  NodeJob job(3);
  const Words program =
      acts({"env:RANK+env:LOCAL_RANK+env:WORLD_SIZE+env:LOCAL_WORLD_SIZE+env:GROUP_RANK+env:NODE_RANK"});
  Child& last = job.start(2, 1, program);
  Child& zero = job.start(0, 2, program);
  Child& one = job.start(1, 3, program);
  for (Child* node : {&zero, &one, &last}) EXPECT_EQ(node->wait(kSlow), 0) << node->errors();
  EXPECT_THAT(lines_of("1", zero.output()),
              HasSubstr("[1] RANK=1\n[1] LOCAL_RANK=1\n[1] WORLD_SIZE=6\n[1] LOCAL_WORLD_SIZE=2\n[1] GROUP_RANK=0\n"));
  EXPECT_THAT(lines_of("2", one.output()),
              HasSubstr("[2] RANK=2\n[2] LOCAL_RANK=0\n[2] WORLD_SIZE=6\n[2] LOCAL_WORLD_SIZE=3\n[2] GROUP_RANK=1\n"));
  EXPECT_THAT(one.output(), HasSubstr("[4] LOCAL_RANK=2\n"));
  EXPECT_THAT(lines_of("5", last.output()), HasSubstr("[5] RANK=5\n[5] LOCAL_RANK=0\n[5] WORLD_SIZE=6\n[5] "
                                                      "LOCAL_WORLD_SIZE=1\n[5] GROUP_RANK=2\n[5] NODE_RANK=2\n"));
  EXPECT_THAT(zero.errors(), HasSubstr("lockrun: 6 ranks on 3 nodes: "));
}

bool has_ipv6() {
  try {
    listen_tcp("::1", 0);
    return true;
  } catch (const Error& error) {
    std::cout << "not over ::1: " << error.what() << "\n";
    return false;
  }
}

TEST(Nodes, TheirRanksMeetAndAgree) {
  for (const std::string host : {"127.0.0.1", "localhost", "::1"}) {
    if ((host == "::1" && !has_ipv6()) || !system_finds(host)) continue;
    NodeJob job(2, {{"LOCKSTEP_TOKEN", "a shared secret"}}, host);
    Child& one = job.start(1, 1, collective_rank({"steps=20"}));
    Child& zero = job.start(0, 2, collective_rank({"steps=20"}));
    EXPECT_EQ(zero.wait(kSlow), 0) << host << zero.errors();
    EXPECT_EQ(one.wait(kSlow), 0) << host << one.errors();
    EXPECT_THAT(zero.output(), HasSubstr("rank 1 of 3 did 20 steps"));
    EXPECT_THAT(one.output(), HasSubstr("rank 2 of 3 did 20 steps"));
  }
}

TEST(Nodes, NodeZeroKeepsTheStoreUntilAllHaveFinished) {
  NodeJob job(2);
  Child& zero = job.start(0, 1, acts({"out:short"}));
  Child& one = job.start(1, 1, acts({"sleep:1500+out:long"}));
  ASSERT_TRUE(zero.wait_for_output("short")) << zero.errors();
  std::this_thread::sleep_for(milliseconds(500));
  EXPECT_FALSE(zero.alive().empty()) << "left before the other node";
  EXPECT_EQ(one.wait(kSlow), 0) << one.errors();
  EXPECT_EQ(zero.wait(kSoon), 0) << zero.errors();
  EXPECT_THAT(one.output(), HasSubstr("[1] long"));
}

TEST(Nodes, ALockrunThatIsStoppedIsNamedOnceTheOthersRanksHaveFinished) {
  for (const int stopped : {0, 1}) {
    NodeJob job(2, {{"LOCKSTEP_STALL_TIMEOUT_S", "2"}});
    Child* nodes[] = {&job.start(0, 1, acts({"out:up+flush+sleep:4000"})),
                      &job.start(1, 1, acts({"", "out:up+flush+sleep:4000"}))};
    for (Child* node : nodes) ASSERT_TRUE(node->wait_for_output("up")) << node->errors();
    nodes[stopped]->signal(SIGSTOP);
    Child& other = *nodes[1 - stopped];
    EXPECT_EQ(other.wait(kSlow), 75) << other.errors();
    EXPECT_THAT(other.errors(), AllOf(HasSubstr("lockrun: node " + std::to_string(stopped) + " on host "),
                                      HasSubstr("has sent no heartbeat for 2 s"), HasSubstr("is it stopped?")));
    nodes[stopped]->signal(SIGCONT);
    EXPECT_EQ(nodes[stopped]->wait(kSlow), stopped == 0 ? 0 : 75)
        << nodes[stopped]->errors();  // node 0 knows that all have finished
    EXPECT_THAT(nodes[1]->errors(), HasSubstr(stopped == 1 ? "lockrun: node 1 on host " : ""));
  }
}

TEST(Nodes, WhoWorksForLongerThanTheStallTimeoutIsAwaited) {
  for (const int longer : {0, 1}) {
    NodeJob job(2, {{"LOCKSTEP_STALL_TIMEOUT_S", "3"}});
    const auto program = [longer](int node) { return node == longer ? "sleep:8000+out:long" : "out:short"; };
    Child* nodes[] = {&job.start(0, 1, acts({program(0)})), &job.start(1, 1, acts({"", program(1)}))};
    for (Child* node : nodes) EXPECT_EQ(node->wait(kSlow), 0) << node->errors();
    EXPECT_THAT(nodes[longer]->output(), HasSubstr("long"));
  }
}

TEST(Nodes, AFailureAnywhereEndsAllWithTheSameCauseAndCode) {
  for (const int guilty : {0, 1, 2}) {
    NodeJob job(3);
    std::deque<Child*> nodes;
    for (int node = 0; node < 3; ++node)
      nodes.push_back(
          &job.start(node, 1, acts({node == guilty ? "sleep:300+err:the reason+exit:7" : "out:up+flush+hang"})));
    for (int node = 0; node < 3; ++node) {
      Child& lockrun = *nodes[static_cast<std::size_t>(node)];
      EXPECT_EQ(lockrun.wait(kSlow), 7) << lockrun.errors();
      EXPECT_THAT(lockrun.errors(), AllOf(HasSubstr("lockrun: rank " + std::to_string(guilty) + " (pid "),
                                          HasSubstr(", node " + std::to_string(guilty) + " on host "),
                                          HasSubstr(") exited with code 7\n")));
      if (node == guilty)
        EXPECT_THAT(lockrun.errors(), HasSubstr("its last lines on stderr:\n    the reason\n"));
      else
        EXPECT_THAT(lockrun.errors(), AllOf(HasSubstr("its last lines are in the output of the lockrun of node " +
                                                      std::to_string(guilty)),
                                            Not(HasSubstr("the reason"))));
      EXPECT_TRUE(lockrun.nothing_left());
    }
  }
}

TEST(Nodes, TheCauseIsFoundBehindItsConsequenceOnAnotherNode) {
  NodeJob job(2);
  Child& zero = job.start(0, 2, acts({"lost:rank 2 is gone"}));
  Child& one = job.start(1, 2, acts({"out", "out", "sleep:1500+kill", "hang"}));
  for (Child* node : {&zero, &one}) {
    EXPECT_EQ(node->wait(kSlow), 128 + SIGKILL) << node->errors();
    EXPECT_THAT(node->errors(), AllOf(HasSubstr("lockrun: rank 2 (pid "), HasSubstr("was killed by signal 9")));
  }
}

// Its own rank may be the cause, and no process there can report it.
TEST(Nodes, ALockrunThatIsStoppedIsNamedWhenOthersLoseAPeer) {
  NodeJob job(2);
  Child& zero = job.start(0, 1, acts({"out:up+flush+sleep:1500+lost:rank 1 is gone"}));
  Child& one = job.start(1, 1, acts({"", "out:up+flush+hang"}));
  for (Child* node : {&zero, &one}) ASSERT_TRUE(node->wait_for_output("up")) << node->errors();
  one.signal(SIGSTOP);
  EXPECT_EQ(zero.wait(kSlow), 75) << zero.errors();
  EXPECT_THAT(zero.errors(), AllOf(HasSubstr("lockrun: node 1 on host "), HasSubstr("does not answer"),
                                   HasSubstr("is it stopped?"), Not(HasSubstr("no rank failed by itself"))));
  one.signal(SIGCONT);
  EXPECT_EQ(one.wait(kSlow), 75) << one.errors();
  EXPECT_TRUE(one.nothing_left());
}

TEST(Nodes, OnlyConsequencesAreSaidToBeThat) {
  NodeJob job(2);
  Child& zero = job.start(0, 1, acts({"lost:gone"}));
  Child& one = job.start(1, 1, acts({"hang"}));
  for (Child* node : {&zero, &one}) {
    EXPECT_EQ(node->wait(kSlow), 75) << node->errors();
    EXPECT_THAT(node->errors(), HasSubstr("no rank failed by itself"));
  }
}

TEST(Nodes, AKilledLockrunEndsTheJobAndLeavesNothing) {
  for (const int killed : {0, 1}) {
    NodeJob job(2);
    Child* nodes[] = {&job.start(0, 2, acts({"daemon+out:up+flush+hang"})),
                      &job.start(1, 2, acts({"daemon+out:up+flush+hang"}))};
    for (Child* node : nodes) ASSERT_TRUE(node->wait_for_output("up")) << node->errors();
    nodes[killed]->signal(SIGKILL);
    EXPECT_EQ(nodes[killed]->wait(), 137);
    EXPECT_TRUE(nodes[killed]->nothing_left());
    Child& survivor = *nodes[1 - killed];
    EXPECT_EQ(survivor.wait(kLost), 75) << survivor.errors();
    EXPECT_THAT(survivor.errors(),
                AllOf(HasSubstr("lockrun: node " + std::to_string(killed) + " on host "), HasSubstr(kGone)));
    EXPECT_TRUE(survivor.nothing_left());
  }
}

TEST(Nodes, ASignalToAnyLockrunEndsTheWholeJob) {
  for (const int interrupted : {0, 1}) {
    NodeJob job(2);
    Child* nodes[] = {&job.start(0, 1, acts({"out:up+flush+sleep:60000"})),
                      &job.start(1, 1, acts({"out:up+flush+sleep:60000"}))};
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
    NodeJob job(2);
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
  NodeJob job(2);
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
    NodeJob job(2);
    const Words lockrun = {
        LOCKRUN,     "--no-fold",     "--nnodes", "2",  "--node-rank", std::to_string(poor), "--master-addr",
        "127.0.0.1", "--master-port", job.port(), "-n", "20",          RANK_PROGRAM,         "hang"};
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
  NodeJob job(2, {{"LOCKSTEP_TOKEN", "secret"}});
  const Words program = acts({"env:RANK+env:LOCKSTEP_DEVICE+env:LOCKSTEP_SHARE_GPU"});
  Child& zero = job.start(0, 2, program, gpus("two"));
  Child& one = job.start(1, 2, program, gpus("two"), {"--gpus", "1", "--share-gpu", "2"});
  EXPECT_EQ(zero.wait(kSlow), 0) << zero.errors();
  EXPECT_EQ(one.wait(kSlow), 0) << one.errors();
  EXPECT_THAT(zero.output(),
              AllOf(HasSubstr("[0] LOCKSTEP_DEVICE=cuda:0\n"), HasSubstr("[1] LOCKSTEP_DEVICE=cuda:1\n")));
  EXPECT_THAT(one.output(), AllOf(HasSubstr("[2] LOCKSTEP_DEVICE=cuda:1\n"), HasSubstr("[3] LOCKSTEP_DEVICE=cuda:1\n"),
                                  HasSubstr("[3] LOCKSTEP_SHARE_GPU=2\n")));
  EXPECT_THAT(one.errors(), HasSubstr("(ranks 2, 3)"));
}

TEST(Nodes, GpusThatCannotBeUsedOnOneEndAll) {
  NodeJob job(2, {{"LOCKSTEP_TOKEN", "secret"}});
  Child& zero = job.start(0, 1, acts({"hang"}), gpus("no gpu"));
  Child& one = job.start(1, 1, acts({"hang"}), gpus("old driver"));
  EXPECT_EQ(one.wait(kSlow), 1) << one.errors();
  EXPECT_EQ(zero.wait(kSlow), 1) << zero.errors();
  for (const Child* node : {&zero, &one})
    EXPECT_THAT(node->errors(), HasSubstr("the NVIDIA driver is for CUDA 11.4")) << node->errors();
  EXPECT_TRUE(zero.nothing_left());
}

TEST(Nodes, GpusThatAreNotThereOnOneEndAllWithTheSameCode) {
  NodeJob job(2, {{"LOCKSTEP_TOKEN", "secret"}});
  Child& zero = job.start(0, 1, acts({"hang"}), gpus("no gpu"));
  Child& one = job.start(1, 1, acts({"hang"}), gpus("two"), {"--gpus", "7"});
  for (Child* node : {&zero, &one}) {
    EXPECT_EQ(node->wait(kSlow), 2) << node->errors();
    EXPECT_THAT(node->errors(), HasSubstr("--gpus 7: this machine shows 2 GPUs"));
  }
}

// Also shows how often it has woken up, since it checks for a signal each time.
long reads_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/io");
  std::string name;
  for (long value = 0; file >> name >> value;)
    if (name == "syscr:") return value;
  return -1;
}

// Node 0 leaves the job 10 s after the decision, although node 1's reader still sleeps, and then waits for its own
// reader.
TEST(Nodes, ALockrunThatWaitsForItsReaderAloneLeavesTheNodesAlone) {
  OutputPipe zeros, ones;
  NodeJob job(2);
  const Words more_than_a_pipe_holds = acts({"lines:4000"});
  Child& zero = job.start(0, 1, more_than_a_pipe_holds, {}, {}, zeros.write_end());
  Child& one = job.start(1, 1, more_than_a_pipe_holds, {}, {}, ones.write_end());
  std::this_thread::sleep_for(milliseconds(12'000));
  ASSERT_FALSE(zero.has_ended()) << zero.errors();
  ASSERT_FALSE(one.has_ended()) << one.errors();
  ones.read_all();
  EXPECT_EQ(one.wait(kSlow), 0) << one.errors();
  if (reads_of(zero.pid()) < 0) std::cout << "this system does not count a process's reads\n";
  const long before = reads_of(zero.pid());
  const auto start = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(milliseconds(1000));
  const long reads = reads_of(zero.pid()) - before;
  EXPECT_LE(reads, 300 * std::chrono::ceil<std::chrono::seconds>(std::chrono::steady_clock::now() - start).count())
      << "it spins";
  zeros.read_all();
  EXPECT_EQ(zero.wait(kSlow), 0) << zero.errors();
}

TEST(Nodes, WhatFailedHereIsToldThoughNodeZeroIsLostBeforeItJudges) {
  NodeJob job(2);
  const std::string stopped = ::testing::TempDir() + "node-zero-stopped-" + std::to_string(::getpid());
  Child& zero = job.start(0, 1, acts({"out:up+flush+hang"}));
  Child& one = job.start(1, 1, acts({"out", "await:" + stopped + "+err:the reason+exit:9"}));
  ASSERT_TRUE(zero.wait_for_output("up")) << zero.errors();
  zero.signal(SIGSTOP);
  std::ofstream{stopped};
  std::this_thread::sleep_for(milliseconds(1500));
  zero.signal(SIGKILL);
  EXPECT_EQ(zero.wait(), 137);
  EXPECT_EQ(one.wait(kLost), 75) << one.errors();
  std::filesystem::remove(stopped);
  EXPECT_THAT(one.errors(),
              AllOf(HasSubstr("lockrun: node 0 on host "), HasSubstr(kGone), HasSubstr(") exited with code 9\n"),
                    HasSubstr("its last lines on stderr:\n    the reason\n")));
}

}  // namespace
}  // namespace lockstep::testing

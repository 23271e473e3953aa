// Nodes that do not form one job: numbers, addresses and ports that do not match, and the token with which they
// recognise each other.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/launch/node_job.h"

namespace lockstep::testing {
namespace {

std::string file(const std::string& name) {
  return ::testing::TempDir() + "lockstep-nodes-" + std::to_string(::getpid()) + "-" + name;
}

TEST(NodesMistakes, AMissingNodeIsNamedWhileWaitingAndAtTheEnd) {
  NodeJob job(3, {{"LOCKSTEP_STORE_TIMEOUT_S", "7"}});
  Child& zero = job.start(0, 1, acts({"exit:0"}));
  Child& two = job.start(2, 1, acts({"exit:0"}));
  EXPECT_EQ(zero.wait(kSlow), 1);
  EXPECT_EQ(two.wait(kSoon), 1);
  EXPECT_THAT(zero.errors(),
              AllOf(HasSubstr("lockrun: node 0 waits at 127.0.0.1:" + job.port() + " for node 1 (5 s of 7 s)"),
                    HasSubstr("; lockruns on other machines cannot reach that address, see --master-addr"),
                    HasSubstr("node 1 of 3 did not arrive at 127.0.0.1:" + job.port() + " within 7 s")));
  EXPECT_THAT(two.errors(), AllOf(HasSubstr("lockrun: node 2 has joined and waits for node 1"),
                                  HasSubstr("node 1 of 3 did not arrive")));
}

TEST(NodesMistakes, NodeZeroThatDoesNotComeIsNamed) {
  NodeJob job(2, {{"LOCKSTEP_STORE_TIMEOUT_S", "6"}});
  Child& one = job.start(1, 1, acts({"exit:0"}));
  NodeJob nameless(2, {{"LOCKSTEP_STORE_TIMEOUT_S", "2"}, {"LOCKSTEP_TOKEN", "t"}}, "no-such-host.invalid");
  Child& lost = nameless.start(1, 1, acts({"exit:0"}));
  EXPECT_EQ(lost.wait(kSlow), 1);
  EXPECT_THAT(lost.errors(), HasSubstr("node 0 did not answer at no-such-host.invalid:"));
  EXPECT_EQ(one.wait(kSlow), 1);
  EXPECT_THAT(one.errors(), AllOf(HasSubstr("lockrun: node 1 waits for node 0 at 127.0.0.1:" + job.port() +
                                            ": Connection refused (5 s of 6 s)"),
                                  HasSubstr("node 0 did not answer at 127.0.0.1:" + job.port() + " within 6 s")));
}

TEST(NodesMistakes, TwoLockrunsWithOneNumber) {
  NodeJob job(3);
  Child& zero = job.start(0, 1, acts({"exit:0"}));
  Child& duplicate = job.start(1, 1, acts({"exit:0"}));
  std::this_thread::sleep_for(milliseconds(1000));
  Child& other = job.start(1, 1, acts({"exit:0"}));
  EXPECT_EQ(other.wait(kSoon), 1) << other.errors();
  EXPECT_THAT(other.errors(),
              HasSubstr("--node-rank 1 is taken: lockrun " + std::to_string(duplicate.pid()) + " on host "));
  Child& two = job.start(2, 1, acts({"exit:0"}));
  for (Child* node : {&zero, &duplicate, &two}) EXPECT_EQ(node->wait(kSlow), 0) << node->errors();
}

TEST(NodesMistakes, OtherNumbersOfNodes) {
  NodeJob job(2, {{"LOCKSTEP_STORE_TIMEOUT_S", "5"}});
  Child& zero = job.start(0, 1, acts({"exit:0"}));
  Child other({LOCKRUN, "--no-fold", "--nnodes", "3", "--node-rank", "1", "--master-addr", "127.0.0.1", "--master-port",
               job.port(), "-n", "1", "true"});
  EXPECT_EQ(other.wait(kSoon), 1);
  EXPECT_THAT(other.errors(), AllOf(HasSubstr("with --nnodes 3"), HasSubstr("with --nnodes 2")));
  EXPECT_EQ(zero.wait(kSlow), 1);
  EXPECT_THAT(zero.errors(), HasSubstr("with --nnodes 3"));
}

TEST(NodesMistakes, APortInUse) {
  NodeJob job(2, {{"LOCKSTEP_STORE_TIMEOUT_S", "3"}});
  Child& first = job.start(0, 1, acts({"exit:0"}));
  std::this_thread::sleep_for(milliseconds(700));
  Child& second = job.start(0, 1, acts({"exit:0"}));
  EXPECT_EQ(second.wait(kSoon), 1);
  EXPECT_THAT(second.errors(), AllOf(HasSubstr("--master-port " + job.port()), HasSubstr("Address already in use")));
  first.wait(kSlow);
}

TEST(NodesMistakes, AnAddressOfAnotherMachine) {
  NodeJob job(2, {{"LOCKSTEP_TOKEN", "secret"}}, "192.0.2.1");
  Child& zero = job.start(0, 1, acts({"exit:0"}));
  EXPECT_EQ(zero.wait(kSoon), 1);
  EXPECT_THAT(zero.errors(),
              AllOf(HasSubstr("--master-addr 192.0.2.1"), HasSubstr("must be an address of the machine")));
}

TEST(NodesMistakes, ALockrunThatComesTooLate) {
  NodeJob job(2);
  Child& zero = job.start(0, 1, acts({"out:up+flush+sleep:2000"}));
  Child& one = job.start(1, 1, acts({"out:up+flush+sleep:2000"}));
  ASSERT_TRUE(zero.wait_for_output("up"));
  Child& late = job.start(1, 1, acts({"exit:0"}));
  EXPECT_EQ(late.wait(kSoon), 1);
  EXPECT_THAT(late.errors(), HasSubstr("is already running with all its nodes"));
  EXPECT_EQ(zero.wait(kSlow), 0) << zero.errors();
  EXPECT_EQ(one.wait(kSlow), 0) << one.errors();
}

// -- the token --------------------------------------------------------------------------------------------------------

TEST(NodesToken, AnotherOneIsRefusedAndDoesNoHarm) {
  NodeJob job(2);
  Child& zero = job.start(0, 1, acts({"exit:0"}), {{"LOCKSTEP_TOKEN", "right"}});
  Child& refused = job.start(1, 1, acts({"exit:0"}), {{"LOCKSTEP_TOKEN", "wrong"}});
  EXPECT_EQ(refused.wait(kSoon), 1);
  EXPECT_THAT(refused.errors(), AllOf(HasSubstr("refuses the token"), HasSubstr("LOCKSTEP_TOKEN")));
  Child& member = job.start(1, 1, acts({"exit:0"}), {{"LOCKSTEP_TOKEN", "right"}});
  EXPECT_EQ(member.wait(kSlow), 0) << member.errors();
  EXPECT_EQ(zero.wait(kSlow), 0) << zero.errors();
  EXPECT_THAT(zero.errors(), HasSubstr("does not know the job's token"));
}

TEST(NodesToken, AcrossMachinesThereMustBeOne) {
  for (const int node : {0, 1}) {
    NodeJob job(2, {}, "0.0.0.0");
    Child& lockrun = job.start(node, 1, acts({"exit:0"}));
    EXPECT_EQ(lockrun.wait(kSoon), 2);
    EXPECT_THAT(lockrun.errors(), AllOf(HasSubstr("openssl rand -hex 32"), HasSubstr("LOCKSTEP_TOKEN_FILE"),
                                        HasSubstr("LOCKSTEP_INSECURE=1")));
  }
  NodeJob open(2, {{"LOCKSTEP_INSECURE", "1"}}, "0.0.0.0");
  Child& zero = open.start(0, 1, collective_rank({"steps=3"}));
  Child& one = open.start(1, 1, collective_rank({"steps=3"}));
  EXPECT_EQ(zero.wait(kSlow), 0) << zero.errors();
  EXPECT_EQ(one.wait(kSlow), 0) << one.errors();
}

// Checks every argument of every process of the job, and all its output.
TEST(NodesToken, StandsInNoArgumentAndNoOutput) {
  const std::string secret = "5ecret-0123456789abcdef", path = file("token");
  std::ofstream(path) << "\n  " << secret << " \n";
  NodeJob job(2, {{"LOCKSTEP_LOG_LEVEL", "trace"}});
  const Words program = collective_rank({"steps=100000", "pause_ms=20", "fail_rank=1", "fail_at=100", "how=throw"});
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

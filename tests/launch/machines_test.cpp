// Starting across machines, in network namespaces: lockrun on each; and mpirun, with a script that enters a namespace
// as its remote shell.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>

#include "lockstep/comm/capabilities.h"
#include "src/comm/net/host_names.h"
#include "tests/faults/hand_job.h"
#include "tests/network/network_lab.h"
#include "tests/support/temporary.h"

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr milliseconds kMachinesTime(40'000), kMachineLost(16'000);

class Machines : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string obstacle = NetworkLab::obstacle(); !obstacle.empty()) GTEST_SKIP() << obstacle;
    lab_ = std::make_unique<NetworkLab>(2);
  }
  Child lockrun(int node, int ranks, const std::vector<std::string>& program, const std::string& host,
                Environment environment = {}) const {
    std::vector<std::string> words = {
        LOCKRUN,         "--no-fold", "--nnodes",      "2",     "--node-rank", std::to_string(node),
        "--master-addr", host,        "--master-port", "29511", "-n",          std::to_string(ranks)};
    words.insert(words.end(), program.begin(), program.end());
    environment.insert({"LOCKSTEP_TOKEN", "the machines' secret"});
    return Child(words, {.environment = std::move(environment), .network = lab_->network(node)});
  }
  // A rank on that machine that another launcher has started.
  Child rank(int machine, const std::string& host, Environment environment) const {
    environment.insert({{"MASTER_ADDR", host}, {"LOCKSTEP_TOKEN", "the machines' secret"}});
    return Child(collective_rank({"steps=10"}),
                 {.environment = std::move(environment), .network = lab_->network(machine)});
  }
  std::unique_ptr<NetworkLab> lab_;
};

TEST_F(Machines, TheirLockrunsAndRanksMeet) {
  std::vector<std::string> hosts = {NetworkLab::address(0)};
  if (NetworkLab::has_ipv6()) hosts.push_back("[" + NetworkLab::address6(0) + "]");
  for (const std::string& host : hosts) {
    Child one = lockrun(1, 1, collective_rank({"steps=10"}), host),
          zero = lockrun(0, 2, collective_rank({"steps=10"}), host);
    EXPECT_EQ(zero.wait(kMachinesTime), 0) << host << ": " << zero.errors();
    EXPECT_EQ(one.wait(kMachinesTime), 0) << host << ": " << one.errors();
    EXPECT_THAT(zero.output(), HasSubstr("rank 1 of 3 did 10 steps"));
    EXPECT_THAT(one.output(), HasSubstr("rank 2 of 3 did 10 steps"));
  }
}

// Node 0's ranks cannot be reached at that address.
TEST_F(Machines, NodeZeroMayListenOnAllInterfaces) {
  for (const char* everywhere : {"0.0.0.0", "::"}) {
    if (!NetworkLab::has_ipv6() && everywhere[0] == ':') continue;
    Child zero = lockrun(0, 2, collective_rank({"steps=10"}), everywhere);
    Child one = lockrun(1, 1, collective_rank({"steps=10"}), NetworkLab::address(0));
    EXPECT_EQ(zero.wait(kMachinesTime), 0) << everywhere << ": " << zero.errors();
    EXPECT_EQ(one.wait(kMachinesTime), 0) << everywhere << ": " << one.errors();
  }
}

TEST_F(Machines, AFailureThereEndsAllHere) {
  const std::vector<std::string> program =
      collective_rank({"steps=1000000", "pause_ms=1", "fail_rank=2", "fail_at=100", "how=exit"});
  Child one = lockrun(1, 1, program, NetworkLab::address(0)), zero = lockrun(0, 2, program, NetworkLab::address(0));
  for (Child* node : {&zero, &one}) {
    EXPECT_EQ(node->wait(kMachinesTime), 3) << node->errors();
    EXPECT_THAT(node->errors(), AllOf(HasSubstr("lockrun: rank 2 (pid "), HasSubstr(", node 1 on host "),
                                      HasSubstr(" exited with code 3")));
    EXPECT_TRUE(node->nothing_left());
  }
}

TEST_F(Machines, ALostOneIsNamedOnBothSidesWithinTenSeconds) {
  const std::vector<std::string> program = collective_rank({"steps=1000000", "pause_ms=1"});
  Child one = lockrun(1, 1, program, NetworkLab::address(0)), zero = lockrun(0, 1, program, NetworkLab::address(0));
  for (Child* node : {&zero, &one}) ASSERT_TRUE(node->wait_for_output("is running")) << node->errors();
  lab_->cut(1);
  EXPECT_EQ(zero.wait(kMachineLost), 75) << zero.errors();
  EXPECT_EQ(one.wait(kMachineLost), 75) << one.errors();
  EXPECT_THAT(zero.errors(), HasSubstr("lockrun: node 1 on host "));
  EXPECT_THAT(one.errors(), HasSubstr("lockrun: node 0 on host "));
  for (Child* node : {&zero, &one}) {
    EXPECT_THAT(node->errors(), HasSubstr(" is gone: the connection to its lockrun"));
    EXPECT_TRUE(node->nothing_left());
  }
}

// Rank 0 has "localhost" as MASTER_ADDR, cannot determine its own address from it, and is reached all the same, by
// store and ring.
TEST_F(Machines, PodsMeetAtAServicesName) {
  const auto pod = [&](int number, const std::string& host) {
    return rank(number, host,
                {{"RANK", std::to_string(number)},
                 {"WORLD_SIZE", "2"},
                 {"MASTER_PORT", "29513"},
                 {"KUBERNETES_SERVICE_HOST", "10.96.0.1"}});
  };
  Child zero = pod(0, "localhost"), one = pod(1, NetworkLab::address(0));
  EXPECT_EQ(zero.wait(kMachinesTime), 0) << zero.errors();
  EXPECT_EQ(one.wait(kMachinesTime), 0) << one.errors();
  EXPECT_THAT(one.output(), HasSubstr("rank 1 of 2 did 10 steps"));
}

// The same for lockrun, in the master's own pod.
TEST_F(Machines, LockrunsInPodsMeetAtAServicesName) {
  const Environment pod = {{"KUBERNETES_SERVICE_HOST", "10.96.0.1"}};
  for (const Environment& chosen : {Environment{}, Environment{{"LOCKSTEP_INTERFACE", "lab0"}}}) {
    Environment zeros = pod;
    zeros.insert(chosen.begin(), chosen.end());
    Child zero = lockrun(0, 2, collective_rank({"steps=10"}), "localhost", zeros);
    Child one = lockrun(1, 1, collective_rank({"steps=10"}), NetworkLab::address(0), pod);
    EXPECT_EQ(zero.wait(kMachinesTime), 0) << zero.errors();
    EXPECT_EQ(one.wait(kMachinesTime), 0) << one.errors();
    EXPECT_THAT(one.output(), HasSubstr("rank 2 of 3 did 10 steps"));
  }
}

TEST_F(Machines, SrunsTasksMeetAtTheFirstHost) {
  const auto task = [&](int number, int machine) {
    return rank(machine, "",
                {{"SLURM_JOB_ID", "4711"},
                 {"SLURM_STEP_ID", "0"},
                 {"SLURM_NTASKS", "3"},
                 {"SLURM_TASKS_PER_NODE", "2,1"},
                 {"SLURM_JOB_NODELIST", "10.83.0.[1-2]"},
                 {"SLURM_NODEID", std::to_string(machine)},
                 {"SLURM_PROCID", std::to_string(number)},
                 {"SLURM_LOCALID", std::to_string(number - 2 * machine)}});
  };
  Child zero = task(0, 0), one = task(1, 0), two = task(2, 1);
  for (Child* each : {&zero, &one, &two}) EXPECT_EQ(each->wait(kMachinesTime), 0) << each->errors();
  EXPECT_THAT(two.output(), HasSubstr("rank 2 of 3 did 10 steps"));
}

// The ranks notice first: their lockruns request heartbeats from each other, and blame the lost node rather than a rank
// that has lost a peer.
TEST_F(Machines, ALossThatRanksNoticeFirstIsAskedAfter) {
  const std::vector<std::string> program = {RANK_PROGRAM, "out:up+flush+sleep:1500+lost:a peer is gone"};
  Child one = lockrun(1, 1, program, NetworkLab::address(0)), zero = lockrun(0, 1, program, NetworkLab::address(0));
  for (Child* node : {&zero, &one}) ASSERT_TRUE(node->wait_for_output("up")) << node->errors();
  lab_->cut(1);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(zero.wait(kMachineLost), 75) << zero.errors();
  EXPECT_EQ(one.wait(kMachineLost), 75) << one.errors();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  EXPECT_THAT(zero.errors(), HasSubstr("lockrun: node 1 on host "));
  EXPECT_THAT(one.errors(), HasSubstr("lockrun: node 0 on host "));
}

class MpirunMachines : public Machines {
 protected:
  void SetUp() override {
    if (std::system("command -v mpirun > /dev/null 2>&1 && command -v nsenter > /dev/null 2>&1") != 0)
      GTEST_SKIP() << "mpirun or nsenter is not installed";
    Machines::SetUp();
    if (!lab_) return;
    // Open MPI 5 takes two machines with one name for one, and recognises its own only by name.
    std::ofstream(agent_) << "#!/bin/sh\nshift\nexec nsenter --net=/proc/" << ::getpid() << "/fd/" << lab_->network(1)
                          << " unshare --uts sh -c \"hostname lab-machine-1; $*\"\n";
    std::filesystem::permissions(agent_, std::filesystem::perms(0700));
  }
  void TearDown() override {
    std::filesystem::remove(agent_);
    std::filesystem::remove(report_);
  }
  Child mpirun(std::vector<std::string> arguments, const std::vector<std::string>& exported = {}) const {
    const std::string net = "10.83.0.0/24";
    std::map<std::string, std::string> settings = {
        {"plm_rsh_agent", agent_}, {"btl", "tcp,self"}, {"btl_tcp_if_include", net}, {"oob_tcp_if_include", net}};
    // If an interface has addresses of both families, Open MPI 5.0.7 sees only the IPv6 one, and then finds no route to
    // it.
    settings["btl_tcp_disable_family"] = "6";
    std::vector<std::string> words = {"mpirun", "--host", host_name() + ":2," + NetworkLab::address(1) + ":1", "-n",
                                      "3"};
    for (const auto& [name, value] : settings) words.insert(words.end(), {"--mca", name, value});
    for (const std::string& variable : exported) words.insert(words.end(), {"-x", variable});
    arguments.push_back("report=" + report_);  // mpirun sometimes loses the last output of ranks
    for (const std::string& word : collective_rank(arguments)) words.push_back(word);
    return Child(words, {.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}},
                         .network = lab_->network(0)});
  }
  std::string report() const {
    std::stringstream text;
    text << std::ifstream(report_).rdbuf();
    return text.str();
  }
  const std::string agent_ = temporary("agent"), report_ = temporary("report");
};

bool has_mpi() {
  const auto names = backend_names();
  return std::find(names.begin(), names.end(), "mpi") != names.end();
}

TEST_F(MpirunMachines, AgreeOnRankZerosAddressThroughMpi) {
  if (!has_mpi()) GTEST_SKIP() << "this build has no MPI";
  Child job = mpirun({"steps=10"});
  EXPECT_EQ(job.wait(kMachinesTime), 0) << job.errors();
  for (const char* line : {"rank 0 of 3 did 10 steps", "rank 1 of 3 did 10 steps", "rank 2 of 3 did 10 steps"})
    EXPECT_THAT(report(), HasSubstr(line)) << job.errors();
  EXPECT_TRUE(job.nothing_left());
}

TEST_F(MpirunMachines, ADeadRankEndsTheJob) {
  if (!has_mpi()) GTEST_SKIP() << "this build has no MPI";
  Child job = mpirun({"steps=1000000", "pause_ms=1", "fail_rank=2", "fail_at=50", "how=kill"});
  EXPECT_GT(job.wait(kMachinesTime), 0) << job.errors();
  EXPECT_TRUE(job.nothing_left());
}

TEST_F(MpirunMachines, OrMeetAtAnAddressThatTheUserNames) {
  Child job =
      mpirun({"steps=10"}, {"MASTER_ADDR=" + NetworkLab::address(0), "MASTER_PORT=29512", "LOCKSTEP_TOKEN=secret"});
  EXPECT_EQ(job.wait(kMachinesTime), 0) << job.errors();
  EXPECT_THAT(report(), HasSubstr("rank 2 of 3 did 10 steps"));
}

}  // namespace
}  // namespace lockstep::testing

// The rows of docs/troubleshooting.md with restarts. Seconds count from the fault until the job trains again; then it
// makes all its steps, and leaves nothing but its checkpoints.
#include <algorithm>
#include <csignal>
#include <memory>

#include "tests/faults/fault_table_job.h"
#include "tests/faults/memory_group.h"
#include "tests/faults/node_job.h"
#include "tests/faults/private_mounts.h"
#include "tests/faults/rank_process.h"
#include "tests/faults/training_net.h"

namespace lockstep::testing {
namespace {

constexpr std::chrono::seconds kLong(60);

// Rank 1 of 3 goes wrong in its 26th step, in the first attempt.
Words once(const std::string& how) {
  return {"resume=1", "steps=60", "fail_rank=1", "fail_at=25", "how=" + how, "fail_attempts=1"};
}

Words restarting(Words command) {
  const Words flags = {"--max-restarts", "3"};
  command.insert(command.begin() + 1, flags.begin(), flags.end());
  return command;
}

// As a shell takes it.
std::string quoted(const Words& command) {
  std::string text;
  for (const std::string& word : command) text += " '" + word + "'";
  return text;
}

TEST_F(FaultTable, ARankIsKilledAndTheJobRestarts) {
  Child job(restarting(under_lockrun(3, once("kill"))));
  expect_restart(job, moment_of_fault(job), "rank 0 of 3");
  expect_nothing_left({&job});
  EXPECT_EQ(load_training(checkpoints()), 60);
}

TEST_F(FaultTable, MemoryRunsOutAndTheJobRestarts) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need more memory than the group has";
  const MemoryGroup group(256 << 20);
  if (!group.is_usable()) GTEST_SKIP() << "this process may not make a control group with a limit of memory";
  Child job({"sh", "-c", group.enter() + " && exec" + quoted(restarting(under_lockrun(3, once("memory"))))});
  expect_restart(job, moment_of_fault(job), "rank 0 of 3");
  expect_nothing_left({&job});
  EXPECT_EQ(load_training(checkpoints()), 60);
}

// The disk has room for two checkpoints, not for three: those after the 20th step are lost, before and after the death.
TEST_F(FaultTable, ARankIsKilledWhileTheDiskIsFull) {
  if (!obstacle_to_private_mounts().empty()) GTEST_SKIP() << obstacle_to_private_mounts();
  const SmallDisk disk(checkpoints(), 48 * 1024);
  Words arguments = once("kill");
  arguments.push_back("fail_at=35");
  Child job(restarting(under_lockrun(3, arguments)));
  expect_restart(job, moment_of_fault(job), "rank 0 of 3");
  expect_nothing_left({&job});
  EXPECT_EQ(load_training(checkpoints()), 20);
}

TEST_F(FaultTable, ARankHangsAndTheJobRestarts) {
  Child job(restarting(under_lockrun(3, once("stay_away"))), kShortDeadline);
  expect_restart(job, moment_of_fault(job), "rank 0 of 3");
  expect_nothing_left({&job});
  EXPECT_EQ(load_training(checkpoints()), 60);
}

// A supervisor, such as systemd with Restart=on-failure, starts lockrun again.
TEST_F(FaultTable, LockrunIsKilledAndStartedAgain) {
  Child supervisor(
      {"sh", "-c", "until" + quoted(restarting(under_lockrun(3, {"resume=1", "steps=1000"}))) + "; do :; done"});
  ASSERT_NO_FATAL_FAILURE(await_training(supervisor));
  const std::vector<pid_t> lockruns = processes_of(supervisor, LOCKRUN);  // its guard has the same name and came later
  ASSERT_FALSE(lockruns.empty());
  const auto fault = FaultClock::now();
  ASSERT_EQ(::kill(*std::min_element(lockruns.begin(), lockruns.end()), SIGKILL), 0);
  expect_restart(supervisor, fault, "rank 0 of 3");
  expect_nothing_left({&supervisor}, /*killed_amid_saving=*/true);
  EXPECT_EQ(load_training(checkpoints()), 1000);
}

// Two nodes, of two ranks and of one. The lockrun of one is killed, and its ranks with it; a supervisor starts it
// again.
class FaultTableNodes {
 public:
  explicit FaultTableNodes(Words training) : training_(std::move(training)) {
    for (int node = 0; node < 2; ++node) nodes_.push_back(start(node));
  }
  FaultClock::time_point lose(int node) {
    const auto fault = FaultClock::now();
    nodes_[static_cast<std::size_t>(node)]->signal(SIGKILL);
    EXPECT_EQ((*this)[node].wait(kLong), 128 + SIGKILL);
    nodes_[static_cast<std::size_t>(node)] = start(node);
    return fault;
  }
  Child& operator[](int node) const { return *nodes_[static_cast<std::size_t>(node)]; }

 private:
  std::unique_ptr<Child> start(int node) const { return start_restarting_node(node, port_, {}, training_); }

  const Words training_;
  const std::string port_ = free_port();
  std::vector<std::unique_ptr<Child>> nodes_;
};

TEST_F(FaultTable, ANodeIsLostAndComesBack) {
  FaultTableNodes nodes(training({"resume=1", "steps=1000"}));
  ASSERT_NO_FATAL_FAILURE(await_training(nodes[0]));
  const auto fault = nodes.lose(1);
  expect_restart(nodes[0], fault, "rank 0 of 3");
  EXPECT_EQ(nodes[1].wait(kLong), 0) << nodes[1].errors();
  expect_nothing_left({&nodes[0], &nodes[1]}, /*killed_amid_saving=*/true);
  EXPECT_EQ(load_training(checkpoints()), 1000);
}

// Node 0's lockrun has the store.
TEST_F(FaultTable, TheStoresHostIsLostAndComesBack) {
  FaultTableNodes nodes(training({"resume=1", "steps=1000"}));
  ASSERT_NO_FATAL_FAILURE(await_training(nodes[1], "2"));
  const auto fault = nodes.lose(0);
  expect_restart(nodes[1], fault, "rank 2 of 3");
  EXPECT_EQ(nodes[0].wait(kLong), 0) << nodes[0].errors();
  expect_nothing_left({&nodes[0], &nodes[1]}, /*killed_amid_saving=*/true);
  EXPECT_EQ(load_training(checkpoints()), 1000);
}

}  // namespace
}  // namespace lockstep::testing

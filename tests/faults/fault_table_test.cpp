// docs/troubleshooting.md, with one test for each row of its faults: real processes, their messages, exit codes and
// time limits, and nothing that they leave behind.
//
// A test finds its row by its own name, and takes limit, exit code and messages from there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "tests/faults/fault_table.h"
#include "tests/faults/hand_job.h"
#include "tests/faults/node_job.h"
#include "tests/faults/private_mounts.h"
#include "tests/faults/things_left.h"
#include "tests/faults/training_net.h"
#include "tests/support/sanitized.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Clock = std::chrono::steady_clock;

constexpr double kSlowdown = kSanitized ? 3 : 1;

std::vector<FaultRow> all_rows() { return read_fault_table(LOCKSTEP_FAULTS_PAGE); }

class FaultTable : public ::testing::Test {
 protected:
  FaultTable() {
    std::string pattern = ::testing::TempDir() + "lockstep-fault-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    fs::create_directory(checkpoints());
    left_ = ThingsLeft(checkpoints());
    const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    for (const FaultRow& row : all_rows())
      if (row.test == test) row_ = row;
  }
  ~FaultTable() override { fs::remove_all(folder_); }
  void SetUp() override { ASSERT_NE(row_.test, "") << "docs/troubleshooting.md has no row for this test"; }

  std::string checkpoints() const { return folder_ + "/checkpoints"; }
  std::string stamp() const { return folder_ + "/stamp"; }

  // An endless training that saves every ten steps.
  std::vector<std::string> training(const std::vector<std::string>& arguments) const {
    std::vector<std::string> command = {TRAINING_RANK,   "steps=1000000",           "pause_ms=5",
                                        "save_every=10", "folder=" + checkpoints(), "stamp=" + stamp()};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return command;
  }
  std::vector<std::string> under_lockrun(int ranks, const std::vector<std::string>& arguments) const {
    std::vector<std::string> command = {LOCKRUN, "--no-fold", "-n", std::to_string(ranks)};
    for (const std::string& word : training(arguments)) command.push_back(word);
    return command;
  }
  // Rank 1 of 3 fails in its 26th step; the checkpoint of the 20th exists, and none is being written.
  std::vector<std::string> one_goes_wrong(const std::string& how) const {
    return under_lockrun(3, {"fail_rank=1", "fail_at=25", "how=" + how});
  }

  // Ranks 0 and 1 are workers, 2 and 3 are servers.
  std::vector<std::string> parameter_server(const std::string& fail_rank, const std::string& how) const {
    return {LOCKRUN,
            "--no-fold",
            "--ps",
            "2",
            "--workers",
            "2",
            STRATEGY_RANK,
            "strategy=parameter_server",
            "fail_rank=" + fail_rank,
            "fail_at=25",
            "how=" + how,
            "stamp=" + stamp()};
  }

  // Returns when a rank reports its failure; waits for that as long as the job lives.
  Clock::time_point moment_of_fault(const Child& job) const {
    long long nanoseconds = 0;
    const auto deadline = Clock::now() + 30s;
    for (bool alive = true; nanoseconds == 0 && alive && Clock::now() < deadline; std::this_thread::sleep_for(2ms)) {
      alive = !job.has_ended();
      std::ifstream(stamp()) >> nanoseconds;
    }
    EXPECT_NE(nanoseconds, 0) << "no rank failed; " << job.errors();
    return nanoseconds == 0 ? Clock::now() : Clock::time_point(std::chrono::nanoseconds(nanoseconds));
  }
  void await_training(const Child& job, const std::string& rank = "0") {
    ASSERT_TRUE(job.wait_for_output("rank " + rank + " of")) << job.errors();
    for (int i = 0; i < 2000 && !fs::exists(checkpoints() + "/latest"); ++i) std::this_thread::sleep_for(5ms);
  }
  std::chrono::milliseconds limit() const {
    return std::chrono::milliseconds(static_cast<long>(row_.limit_s * 1000 * kSlowdown));
  }

  // The job must end in time after that moment, with the row's code.
  void expect_end(Child& job, Clock::time_point fault) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(fault + limit() - Clock::now());
    expect_code(job, job.wait(std::max(left, 1ms)), fault);
  }
  void expect_code(const Child& job, int code, Clock::time_point fault) {
    seen_ = std::max(seen_, std::chrono::duration<double>(Clock::now() - fault).count());
    EXPECT_THAT(row_.exit_codes, ::testing::Contains(code)) << job.errors();
  }
  void expect_messages(const Child& job) const {
    for (const std::string& message : row_.messages)
      EXPECT_TRUE(has_message(job.errors(), message)) << "no line like\n  " << message << "\nin\n" << job.errors();
  }
  void expect_nothing_left(const std::vector<const Child*>& jobs) {
    EXPECT_THAT(left_.after(jobs), IsEmpty());
    show_seen();
  }
  void show_seen() const {
    std::printf("[   seen   ] %s: %.1f s (limit %.0f s)\n", row_.test.c_str(), seen_, row_.limit_s * kSlowdown);
  }
  // All checks, for a training that saves on a disk with room for two checkpoints, not for three.
  void expect_full_disk(const std::vector<std::string>& how) {
    if (!obstacle_to_private_mounts().empty()) GTEST_SKIP() << obstacle_to_private_mounts();
    const SmallDisk disk(checkpoints(), 48 * 1024);
    Child job(under_lockrun(3, how));
    const int code = job.wait(60s);
    const auto end = Clock::now();
    const auto fault = moment_of_fault(job);  // in the last save
    EXPECT_LT(end - fault, limit());
    expect_code(job, code, fault);
    expect_messages(job);
    expect_nothing_left({&job});
    EXPECT_EQ(load_training(checkpoints()), 20) << "the previous one is still there";
  }
  // All checks, for a job under one lockrun whose rank fails by itself.
  void expect_row(Child& job) {
    const auto fault = moment_of_fault(job);
    left_.note_memory(job);
    expect_end(job, fault);
    expect_messages(job);
    expect_nothing_left({&job});
  }

  std::string folder_;
  ThingsLeft left_;
  FaultRow row_;
  double seen_ = 0;
};

const ChildOptions kShortDeadline{.environment = {{"LOCKSTEP_TIMEOUT_S", "3"}}};
const Environment kShortStall = {{"LOCKSTEP_STALL_TIMEOUT_S", "3"}};

TEST_F(FaultTable, ARankExitsWith1) {
  Child job(one_goes_wrong("exit:1"));
  expect_row(job);
  EXPECT_EQ(load_training(checkpoints()), 20);
}

TEST_F(FaultTable, ARankThrows) {
  Child job(one_goes_wrong("throw"));
  expect_row(job);
}

TEST_F(FaultTable, ARankSegfaults) {
  Child job(one_goes_wrong("segv"));
  expect_row(job);
}

TEST_F(FaultTable, ARankIsKilled) {
  Child job(one_goes_wrong("kill"));
  expect_row(job);
}

TEST_F(FaultTable, ARankIsStopped) {
  Child job(one_goes_wrong("stop"), {.environment = kShortStall});
  expect_row(job);
}

TEST_F(FaultTable, ARankHangsInUserCode) {
  Child job(one_goes_wrong("stay_away"), kShortDeadline);
  expect_row(job);
}

TEST_F(FaultTable, ARankHangsInsideACollective) {
  Child job(one_goes_wrong("hang_inside"), kShortDeadline);
  expect_row(job);
}

TEST_F(FaultTable, ARankMakesAnotherCall) {
  Child job(one_goes_wrong("other_call"));
  expect_row(job);
}

TEST_F(FaultTable, ARankHasAnotherModel) {
  Child job(one_goes_wrong("other_model"));
  expect_row(job);
}

// -- strategies: the ranks that take part in one, and the rank that is missing

TEST_F(FaultTable, AStageIsKilled) {
  Child job({LOCKRUN, "--no-fold", "-n", "3", STRATEGY_RANK, "strategy=model_parallel", "fail_rank=1", "fail_at=25",
             "how=kill", "stamp=" + stamp()});
  expect_row(job);
}

TEST_F(FaultTable, AServerIsKilled) {
  Child job(parameter_server("2", "kill"));
  expect_row(job);
}

TEST_F(FaultTable, AWorkerIsKilled) {
  Child job(parameter_server("1", "kill"));
  expect_row(job);
}

// exit(0) during a step: no process fails, and the servers miss a worker.
TEST_F(FaultTable, AWorkerLeaves) {
  Child job(parameter_server("1", "leave"));
  expect_row(job);
}

TEST_F(FaultTable, ATowerThrows) {
  Child job({LOCKRUN, "--no-fold", "-n", "1", STRATEGY_RANK, "strategy=towers", "fail_at=25", "how=tower",
             "stamp=" + stamp()});
  expect_row(job);
}

TEST_F(FaultTable, TheDiskFillsUpWhileSaving) { expect_full_disk({"how=disk", "steps=50"}); }

TEST_F(FaultTable, TheDiskFillsUpAndStopsTheTraining) { expect_full_disk({"how=disk", "steps=50", "on_error=stop"}); }

TEST_F(FaultTable, LockrunIsKilled) {
  Child job(under_lockrun(3, {}));
  ASSERT_NO_FATAL_FAILURE(await_training(job));
  EXPECT_TRUE(left_.note_memory(job));
  const auto fault = Clock::now();
  job.signal(SIGKILL);
  expect_end(job, fault);
  EXPECT_TRUE(job.nothing_left(limit()));
  seen_ = std::chrono::duration<double>(Clock::now() - fault).count();
  EXPECT_THAT(left_.after({&job}, /*killed_amid_saving=*/true), IsEmpty());
  show_seen();
}

TEST_F(FaultTable, ANodesLockrunIsKilled) {
  if (const std::string obstacle = NetworkLab::obstacle(); !obstacle.empty()) GTEST_SKIP() << obstacle;
  const NetworkLab lab(2);
  NodeJob job({2, 2}, training({}), kShortStall, &lab);
  ASSERT_TRUE(job.is_training()) << job[0].errors() << job[1].errors();
  const auto fault = Clock::now();
  job[1].signal(SIGKILL);
  EXPECT_EQ(job[1].wait(), 128 + SIGKILL);
  expect_end(job[0], fault);
  expect_messages(job[0]);
  expect_nothing_left(job.all());
}

// Its ranks, and those of the other node, still train to the end.
TEST_F(FaultTable, ANodesLockrunIsStopped) {
  NodeJob job({2, 2}, training({"steps=200", "save_every=100"}), kShortStall);
  ASSERT_TRUE(job.is_training()) << job[0].errors() << job[1].errors();
  const auto fault = Clock::now();
  job[1].signal(SIGSTOP);
  expect_end(job[0], fault);
  expect_messages(job[0]);
  job[1].signal(SIGCONT);
  expect_code(job[1], job[1].wait(), fault);
  expect_nothing_left(job.all());
}

// Each side receives nothing more from the other, and blames it.
TEST_F(FaultTable, ALinkIsCut) {
  if (const std::string obstacle = NetworkLab::obstacle(); !obstacle.empty()) GTEST_SKIP() << obstacle;
  NetworkLab lab(2);
  NodeJob job({2, 2}, training({}), kShortStall, &lab);
  ASSERT_TRUE(job.is_training()) << job[0].errors() << job[1].errors();
  const auto fault = Clock::now();
  lab.cut(1);
  for (const int node : {0, 1}) {
    expect_end(job[node], fault);
    expect_messages(job[node]);
    EXPECT_THAT(job[node].errors(), ::testing::ContainsRegex(node == 0 ? "rank [23] \\(pid" : "rank [01] \\(pid"));
  }
  expect_nothing_left(job.all());
}

// The machine vanishes from the network without a message, and its processes with it.
TEST_F(FaultTable, TheStoresHostIsLost) {
  if (const std::string obstacle = NetworkLab::obstacle(Link::kRelay); !obstacle.empty()) GTEST_SKIP() << obstacle;
  NetworkLab lab(2, Link::kRelay);
  NodeJob job({2, 2}, training({}), kShortStall, &lab);
  ASSERT_TRUE(job.is_training()) << job[0].errors() << job[1].errors();
  const auto fault = Clock::now();
  lab.cut(0);
  job[0].signal(SIGKILL);
  EXPECT_EQ(job[0].wait(), 128 + SIGKILL);
  expect_end(job[1], fault);
  expect_messages(job[1]);
  EXPECT_THAT(left_.after(job.all(), /*killed_amid_saving=*/true), IsEmpty());
  show_seen();
}

TEST_F(FaultTable, AWrongToken) {
  HandJob job(2, {{"LOCKSTEP_TOKEN", "right"}});
  Child& first = job.start(0, {"steps=3"});
  const auto fault = Clock::now();
  Child& refused = job.start(1, {"steps=3"}, {{"LOCKSTEP_TOKEN", "wrong"}});
  expect_end(refused, fault);
  expect_messages(refused);
  EXPECT_FALSE(has_message(refused.errors(), "wrong")) << "a token is not for logs";
  EXPECT_FALSE(has_message(first.errors(), "right"));
  Child& member = job.start(1, {"steps=3"});
  EXPECT_EQ(member.wait(), 0) << member.errors();
  EXPECT_EQ(first.wait(), 0) << first.errors();
  expect_nothing_left({&first, &refused, &member});
}

TEST_F(FaultTable, SharedMemoryIsFull) {
  if (!obstacle_to_private_mounts().empty()) GTEST_SKIP() << obstacle_to_private_mounts();
  const SmallDisk disk("/dev/shm", 4096);
  std::ofstream("/dev/shm/full") << std::string(4096, 'x') << std::flush;
  EXPECT_FALSE(std::ofstream("/dev/shm/more") << 'x' << std::flush);
  fs::remove("/dev/shm/more");
  left_ = ThingsLeft(checkpoints());
  const auto start = Clock::now();
  Child job({LOCKRUN, "--no-fold", "-n", "3", TRAINING_RANK, "steps=50", "save_every=10", "folder=" + checkpoints()});
  expect_end(job, start);
  EXPECT_THAT(job.output(), HasSubstr("rank 2 of 3 did 50 steps over shm"));
  expect_nothing_left({&job});
  EXPECT_EQ(load_training(checkpoints()), 50);
}

// The only limit of a system on memfd_create, apart from memory itself, is that of a file's size; here it is 4 KiB.
TEST_F(FaultTable, SharedMemoryIsRefused) {
  const auto start = Clock::now();
  Child job({"sh", "-c", "ulimit -f 8 && exec " LOCKRUN " --no-fold -n 3 " TRAINING_RANK " steps=50"});
  expect_end(job, start);
  expect_messages(job);
  expect_nothing_left({&job});
}

TEST(ThingsLeft, FindsProcessesMemoryAndHalfACheckpoint) {
  std::string folder = ::testing::TempDir() + "lockstep-left-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  ThingsLeft left(folder);
  Child job({LOCKRUN, "--no-fold", "-n", "2", TRAINING_RANK, "steps=1000000"});
  ASSERT_TRUE(job.wait_for_output("is running")) << job.errors();
  EXPECT_TRUE(left.note_memory(job)) << "two ranks that share memory";
  fs::create_directory(folder + "/writing-step-00000010-1");
  const std::string shared = "/dev/shm/lockstep-left-" + std::to_string(::getpid());
  std::ofstream{shared};
  EXPECT_THAT(left.after({&job}),
              ::testing::IsSupersetOf({HasSubstr("process "), HasSubstr("shared memory "), HasSubstr(shared),
                                       HasSubstr("half a checkpoint: " + folder + "/writing-")}));
  fs::remove(shared);
  fs::remove_all(folder);
}

TEST(FaultsPage, SaysWhatDiffersInAngleBrackets) {
  EXPECT_TRUE(has_message("a\nrank 1 (pid 12) died\n", "rank 1 (pid <pid>) died"));
  EXPECT_TRUE(has_message("rank 1 (pid 12) died", "rank <n>"));
  EXPECT_FALSE(has_message("rank 2 (pid 12) died", "rank 1 (pid <pid>) died"));
  EXPECT_FALSE(has_message("rank 1 (pid 12)\ndied", "rank 1 (pid <pid>) died"));
}

TEST(FaultsPage, HasATestForEachRowAndARowForEachTest) {
  std::vector<std::string> rows, tests;
  for (const FaultRow& row : all_rows()) {
    rows.push_back(row.test);
    EXPECT_LE(row.seen_s, row.limit_s) << row.test;
    EXPECT_NE(row.others, "") << row.test;
  }
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i)
    if (const ::testing::TestSuite& suite = *all.GetTestSuite(i); std::string(suite.name()) == "FaultTable")
      for (int k = 0; k < suite.total_test_count(); ++k) tests.push_back(suite.GetTestInfo(k)->name());
  EXPECT_THAT(tests, ::testing::UnorderedElementsAreArray(rows));
}

}  // namespace
}  // namespace lockstep::testing

// docs/troubleshooting.md, with one test for each row of its faults: real processes, their messages, exit codes and
// time limits, and nothing that they leave behind. fault_restart_test.cpp has the rows with restarts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/faults/fault_table_job.h"
#include "tests/faults/node_job.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Clock = FaultClock;

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

// Ranks 0 and 1 are workers, 2 and 3 are servers.
Words parameter_server(const std::string& fail_rank, const std::string& how, const std::string& stamp) {
  return {LOCKRUN,       "--no-fold",
          "--ps",        "2",
          "--workers",   "2",
          STRATEGY_RANK, "strategy=parameter_server",
          "fail_at=25",  "fail_rank=" + fail_rank,
          "how=" + how,  "stamp=" + stamp};
}

TEST_F(FaultTable, AServerIsKilled) {
  Child job(parameter_server("2", "kill", stamp()));
  expect_row(job);
}

TEST_F(FaultTable, AWorkerIsKilled) {
  Child job(parameter_server("1", "kill", stamp()));
  expect_row(job);
}

// exit(0) during a step: no process fails, and the servers miss a worker.
TEST_F(FaultTable, AWorkerLeaves) {
  Child job(parameter_server("1", "leave", stamp()));
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
  expect_nothing_left({&job}, /*killed_amid_saving=*/true);
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
  expect_nothing_left(job.all(), /*killed_amid_saving=*/true);
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
  for (const FaultRow& row : all_fault_rows()) {
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

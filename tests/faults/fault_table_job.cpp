#include "tests/faults/fault_table_job.h"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/faults/private_mounts.h"
#include "tests/faults/training_net.h"

namespace lockstep::testing {

namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using std::chrono::milliseconds;
using ::testing::IsEmpty;

constexpr double kSlowdown = kSanitized ? 3 : 1;

double seconds_since(FaultClock::time_point fault) {
  return std::chrono::duration<double>(FaultClock::now() - fault).count();
}

int count(const std::string& text, const std::string& what) {
  int found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

}  // namespace

std::vector<FaultRow> all_fault_rows() { return read_fault_table(LOCKSTEP_FAULTS_PAGE); }

FaultTable::FaultTable() {
  std::string pattern = ::testing::TempDir() + "lockstep-fault-XXXXXX";
  folder_ = ::mkdtemp(pattern.data());
  fs::create_directory(checkpoints());
  left_ = ThingsLeft(checkpoints());
  const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  for (const FaultRow& row : all_fault_rows())
    if (row.test == test) row_ = row;
}
FaultTable::~FaultTable() { fs::remove_all(folder_); }

Words FaultTable::training(const Words& arguments) const {
  Words command = {TRAINING_RANK,   "steps=1000000",           "pause_ms=5",
                   "save_every=10", "folder=" + checkpoints(), "stamp=" + stamp()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

Words FaultTable::under_lockrun(int ranks, const Words& arguments) const {
  Words command = {LOCKRUN, "--no-fold", "-n", std::to_string(ranks)};
  for (const std::string& word : training(arguments)) command.push_back(word);
  return command;
}

FaultClock::time_point FaultTable::moment_of_fault(const Child& job) const {
  long long nanoseconds = 0;
  const auto deadline = FaultClock::now() + 30s;
  for (bool alive = true; nanoseconds == 0 && alive && FaultClock::now() < deadline; std::this_thread::sleep_for(2ms)) {
    alive = !job.has_ended();
    std::ifstream(stamp()) >> nanoseconds;
  }
  EXPECT_NE(nanoseconds, 0) << "no rank failed; " << job.errors();
  return nanoseconds == 0 ? FaultClock::now() : FaultClock::time_point(std::chrono::nanoseconds(nanoseconds));
}

void FaultTable::await_training(const Child& job, const std::string& rank) const {
  ASSERT_TRUE(job.wait_for_output("rank " + rank + " of")) << job.errors();
  poll_until([&] { return fs::exists(checkpoints() + "/latest"); }, 10s);
}

milliseconds FaultTable::limit() const { return milliseconds(static_cast<long>(row_.limit_s * 1000 * kSlowdown)); }

void FaultTable::expect_end(Child& job, FaultClock::time_point fault) {
  const auto left = std::chrono::duration_cast<milliseconds>(fault + limit() - FaultClock::now());
  expect_code(job, job.wait(std::max(left, 1ms)), fault);
}

void FaultTable::expect_code(const Child& job, int code, FaultClock::time_point fault) {
  seen_ = std::max(seen_, seconds_since(fault));
  EXPECT_THAT(row_.exit_codes, ::testing::Contains(code)) << job.errors();
}

void FaultTable::expect_messages(const Child& job) const {
  for (const std::string& message : row_.messages)
    EXPECT_TRUE(has_message(job.errors(), message)) << "no line like\n  " << message << "\nin\n" << job.errors();
}

void FaultTable::expect_nothing_left(const std::vector<const Child*>& jobs, bool killed_amid_saving) const {
  EXPECT_THAT(left_.after(jobs, killed_amid_saving), IsEmpty());
  show_seen();
}

void FaultTable::show_seen() const {
  std::printf("[   seen   ] %s: %.1f s (limit %.0f s)\n", row_.test.c_str(), seen_, row_.limit_s * kSlowdown);
}

void FaultTable::expect_row(Child& job) {
  const auto fault = moment_of_fault(job);
  left_.note_memory(job);
  expect_end(job, fault);
  expect_messages(job);
  expect_nothing_left({&job});
}

void FaultTable::expect_full_disk(const Words& how) {
  if (!obstacle_to_private_mounts().empty()) GTEST_SKIP() << obstacle_to_private_mounts();
  const SmallDisk disk(checkpoints(), 48 * 1024);
  Child job(under_lockrun(3, how));
  const int code = job.wait(60s);
  const auto end = FaultClock::now();
  const auto fault = moment_of_fault(job);  // in the last save
  EXPECT_LT(end - fault, limit());
  expect_code(job, code, fault);
  expect_messages(job);
  expect_nothing_left({&job});
  EXPECT_EQ(load_training(checkpoints()), 20) << "the previous one is still there";
}

void FaultTable::expect_restart(Child& job, FaultClock::time_point fault, const std::string& rank) {
  const auto left = std::chrono::duration_cast<milliseconds>(fault + limit() - FaultClock::now());
  EXPECT_TRUE(poll_until([&] { return count(job.output(), rank + " is running") >= 2; }, left)) << job.errors();
  seen_ = seconds_since(fault);
  EXPECT_THAT(row_.exit_codes, ::testing::Contains(job.wait(60s))) << job.errors();
  expect_messages(job);
}

}  // namespace lockstep::testing

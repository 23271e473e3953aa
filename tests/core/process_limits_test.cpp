// A quota of processor time, from files like those of control groups.
#include "src/core/process/process_limits.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temporary.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class Quota : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(group_); }
  void TearDown() override { fs::remove_all(top_); }
  static void say(const fs::path& group, const char* file, const char* text) {
    std::ofstream(group / file) << text << "\n";
  }
  int cores() const {
    const auto quota = smallest_cpu_quota(group_, top_);
    return quota ? quota->cores : 0;
  }
  const fs::path top_ = testing::temporary("groups"), service_ = top_ / "service", group_ = service_ / "task";
};

TEST_F(Quota, OfVersionTwo) {
  EXPECT_EQ(cores(), 0) << "there is none";
  say(group_, "cpu.max", "max 100000");
  EXPECT_EQ(cores(), 0);
  for (const auto& [text, expected] :
       {std::pair{"200000 100000", 2}, {"150000 100000", 2}, {"5000 100000", 1}, {"50000 10000", 5}}) {
    say(group_, "cpu.max", text);
    EXPECT_EQ(cores(), expected) << text;
  }
  for (const char* text : {"", "words", "100000", "0 100000", "-1 100000", "100000 0"}) {
    say(group_, "cpu.max", text);
    EXPECT_EQ(cores(), 0) << text;
  }
}

TEST_F(Quota, OfVersionOne) {
  say(group_, "cpu.cfs_quota_us", "-1");
  say(group_, "cpu.cfs_period_us", "100000");
  EXPECT_EQ(cores(), 0);
  say(group_, "cpu.cfs_quota_us", "250000");
  EXPECT_EQ(cores(), 3);
}

TEST_F(Quota, TheSmallestOnTheWayUpHolds) {
  say(group_, "cpu.max", "400000 100000");
  say(service_, "cpu.max", "200000 100000");
  say(top_, "cpu.max", "300000 100000");
  const auto quota = smallest_cpu_quota(group_, top_);
  ASSERT_TRUE(quota);
  EXPECT_EQ(quota->cores, 2);
  EXPECT_EQ(quota->group, service_) << "whose processes share it";
}

TEST_F(Quota, KillsForWantOfMemoryAreCountedByBothVersions) {
  EXPECT_EQ(out_of_memory_kills_in(top_), std::nullopt) << "there is no file";
  say(top_, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0");
  EXPECT_EQ(out_of_memory_kills_in(top_), std::nullopt) << "an old kernel does not count";
  say(service_, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5");
  EXPECT_EQ(out_of_memory_kills_in(service_), 5);
  say(group_, "memory.events", "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0");
  EXPECT_EQ(out_of_memory_kills_in(group_), 2);
}

TEST_F(Quota, OfThisProcessCanBeAskedFor) { EXPECT_GE(cpu_quota().value_or(CpuQuota{}).cores, 1); }

}  // namespace
}  // namespace lockstep

// Uses a folder in place of /proc.
#include "src/launch/topology/busy_cores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace lockstep::launch {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

const Clock::time_point kWatchStart{};

class BusyCoresTest : public ::testing::Test {
 protected:
  void TearDown() override { fs::remove_all(proc_); }

  // Ticks of cores 0 and 1 together, half each; core 2 is always busy and belongs to no rank.
  void write_cores(int busy, int idle) const {
    fs::create_directories(proc_);
    std::ofstream(proc_ / "stat") << "cpu 1 2 3\n"
                                  << "cpu0 " << busy / 2 << " 0 0 " << idle / 2 << " 0 0 0 0 0 0\n"
                                  << "cpu1 0 0 " << busy / 2 << " " << idle / 2 << " 0 0 0 0 0 0\n"
                                  << "cpu2 " << 100 * (busy + idle) << " 0 0 0 0 0 0 0 0 0\nintr 5\n";
  }
  void write_process(int pid, int parent, int group, int ticks, long run_ns, long waited_ns) const {
    const fs::path folder = proc_ / std::to_string(pid);
    fs::create_directories(folder);
    std::ofstream(folder / "stat") << pid << " (a name) S " << parent << " " << group << " 1 0 -1 0 0 0 0 0 " << ticks
                                   << " 0 0 0 20 0 1\n";
    std::ofstream(folder / "schedstat") << run_ns << " " << waited_ns << " 7\n";
  }
  BusyCores watch() const { return BusyCores({1, 0}, {10, 20}, kWatchStart, proc_.string()); }

  const fs::path proc_ = fs::path(::testing::TempDir()) / ("proc-" + std::to_string(::getpid()));
};

TEST_F(BusyCoresTest, OthersAreToldOnceWithTheirShare) {
  BusyCores cores = watch();
  write_cores(0, 0);
  write_process(10, 1, 10, 0, 0, 0);
  EXPECT_EQ(cores.look(kWatchStart + seconds(4)), "") << "too early";
  EXPECT_EQ(cores.look(*cores.due()), "");
  write_cores(1000, 0);
  write_process(10, 1, 10, 400, 4'000'000'000, 1'000'000'000);
  write_process(99, 10, 99, 100, 0, 0);  // started by the rank, in its own group
  write_process(50, 1, 50, 500, 9'000'000'000, 9'000'000'000);
  EXPECT_THAT(cores.look(*cores.due()),
              AllOf(HasSubstr("other processes take 50 % of the time of the ranks' cores (0-1)"),
                    HasSubstr("wait for a core 20 %")));
  EXPECT_FALSE(cores.due());
  EXPECT_EQ(cores.look(kWatchStart + seconds(1000)), "");
}

TEST_F(BusyCoresTest, TheJobsOwnWorkAndIdleRanksAreNoComplaint) {
  BusyCores cores = watch();
  write_cores(0, 0);
  write_process(10, 1, 10, 0, 0, 0);
  EXPECT_EQ(cores.look(*cores.due()), "");
  write_cores(1000, 0);
  write_process(10, 1, 10, 950, 9'500'000'000, 9'500'000'000);  // four ranks on two cores wait for each other
  EXPECT_EQ(cores.look(*cores.due()), "");
  EXPECT_EQ(cores.look(*cores.due()), "");
  write_cores(2000, 0);
  write_process(10, 1, 10, 960, 9'600'000'000, 9'501'000'000);  // others work, and the rank sleeps
  EXPECT_EQ(cores.look(*cores.due()), "");
  EXPECT_TRUE(cores.due());
}

TEST_F(BusyCoresTest, ASystemThatDoesNotTellIsNoComplaint) {
  BusyCores cores = watch();
  EXPECT_EQ(cores.look(*cores.due()), "");
  EXPECT_EQ(cores.look(*cores.due()), "");
}

}  // namespace
}  // namespace lockstep::launch

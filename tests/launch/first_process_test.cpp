// A container's first process does not receive signals without a handler; the signal that ends a pod must still end it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/faults/hand_job.h"
#include "tests/support/limits_here.h"
#include "tests/support/temporary.h"

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr milliseconds kSoon(10'000), kSlow(30'000);

bool handles(pid_t process, int signal) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("SigCgt:", 0) == 0) return (std::stoull(line.substr(7), nullptr, 16) >> (signal - 1) & 1) != 0;
  return false;
}

class FirstProcess : public ::testing::Test {
 protected:
  void SetUp() override {
    if (is_emulated()) GTEST_SKIP() << "the emulator handles the signals itself";
    if (std::system("unshare --pid --fork true > /dev/null 2>&1") != 0)
      GTEST_SKIP() << "no process namespace may be made here";
  }
  static std::vector<std::string> in_container(const std::vector<std::string>& command) {
    std::vector<std::string> words = {"unshare", "--pid", "--fork", "--kill-child"};
    words.insert(words.end(), command.begin(), command.end());
    return words;
  }
  // Returns the pid of the process that `unshare` started, once it handles SIGTERM; 0 if that took too long.
  static pid_t ready(const Child& container) {
    for (const auto deadline = std::chrono::steady_clock::now() + kSlow; std::chrono::steady_clock::now() < deadline;
         std::this_thread::sleep_for(milliseconds(5)))
      for (const pid_t process : container.alive())
        if (process != container.pid() && handles(process, SIGTERM)) return process;
    return 0;
  }
  static void expect_end_by_sigterm(Child& container) {
    const pid_t first = ready(container);
    ASSERT_NE(first, 0) << container.output() << container.errors();
    ::kill(first, SIGTERM);
    EXPECT_EQ(container.wait(kSoon), 128 + SIGTERM) << container.errors();
  }
};

TEST_F(FirstProcess, ALockrunThatWaitsForOtherNodesEnds) {
  Child container(in_container({LOCKRUN, "--no-fold", "--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1",
                                "--master-port", free_port(), "-n", "1", "true"}),
                  {.environment = {{"LOCKSTEP_STORE_TIMEOUT_S", "60"}}});
  expect_end_by_sigterm(container);
}

TEST_F(FirstProcess, ARankThatTrainsEnds) {
  Child container(in_container(collective_rank({"steps=1000000", "pause_ms=1"})));
  ASSERT_TRUE(container.wait_for_output("is running", kSlow)) << container.errors();
  expect_end_by_sigterm(container);
}

TEST_F(FirstProcess, ARankThatWaitsForTheOthersEnds) {
  Child container(
      in_container(collective_rank({"steps=1"})),
      {.environment = {
           {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", free_port()}}});
  expect_end_by_sigterm(container);
}

TEST_F(FirstProcess, ARanksFlightRecordIsWrittenFirst) {
  const std::string folder = temporary("flight");
  std::filesystem::create_directory(folder);
  Child container(in_container(collective_rank({"steps=1000000", "pause_ms=1"})),
                  {.environment = {{"LOCKSTEP_FLIGHT_DIR", folder}}});
  ASSERT_TRUE(container.wait_for_output("is running", kSlow)) << container.errors();
  expect_end_by_sigterm(container);
  EXPECT_TRUE(std::filesystem::exists(folder + "/rank0.json"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace lockstep::testing

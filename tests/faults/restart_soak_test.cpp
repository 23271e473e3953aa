// Kills ranks of a training at random moments, again and again: lockrun --max-restarts continues from the newest
// checkpoint each time, and the final weights have the bits of an undisturbed run.
//
// LOCKSTEP_SOAK_RESTARTS: the number of kills for each strategy (5). LOCKSTEP_SOAK_SEED: the seed of the moments and
// ranks, which is printed: scripts/soak --restarts N SEED.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "lockstep/core/environment.h"
#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Words = std::vector<std::string>;

constexpr std::chrono::seconds kLongestRun(1800), kLongestStart(120);

class RestartSoak : public ::testing::TestWithParam<const char*> {
 protected:
  RestartSoak() {
    std::string pattern = ::testing::TempDir() + "lockstep-restart-soak-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~RestartSoak() override { fs::remove_all(folder_); }

  std::string report_file() const { return folder_ + "/report.json"; }

  Words job(const std::string& name, int steps, int pause_ms, bool in_background) const {
    const std::string strategy = GetParam();
    Words words = {LOCKRUN, "--no-fold", "--no-prefix", "--max-restarts", "100000", "--report", report_file()};
    const Words ranks = strategy == "parameter_server" ? Words{"--ps", "1", "--workers", "2"} : Words{"-n", "2"};
    words.insert(words.end(), ranks.begin(), ranks.end());
    const std::string folder = folder_ + "/" + name;
    words.insert(words.end(),
                 {RESTART_RANK, "strategy=" + strategy, "folder=" + folder, fmt::format("steps={}", steps),
                  fmt::format("pause_ms={}", pause_ms), fmt::format("background={}", in_background ? 1 : 0)});
    return words;
  }

 private:
  std::string folder_;
};

std::string weights_of(const Child& job) {
  const std::string output = job.output();
  const std::size_t begin = output.find("weights ");
  return begin == std::string::npos ? "" : output.substr(begin, output.find('\n', begin) - begin);
}

// The ranks that run the program now.
std::vector<pid_t> ranks_of(const Child& job) {
  std::vector<pid_t> ranks;
  for (const pid_t pid : job.alive()) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline", std::ios::binary);
    std::string program;
    std::getline(file, program, '\0');
    if (program == RESTART_RANK) ranks.push_back(pid);
  }
  return ranks;
}

TEST_P(RestartSoak, EveryRestartContinuesAndTheWeightsHaveTheBitsOfAnUndisturbedRun) {
  const long kills = env::integer("LOCKSTEP_SOAK_RESTARTS", 1, 1'000'000).value_or(5);
  const long seed =
      env::integer("LOCKSTEP_SOAK_SEED", 0, 0x7fffffff).value_or(static_cast<long>(std::random_device()() >> 2));
  std::printf("%s: seed %ld, %ld kills\n", GetParam(), seed, kills);
  std::fflush(stdout);
  std::mt19937 random(static_cast<std::uint32_t>(seed));
  // Enough steps for all kills: an attempt makes some tens of steps before the next one.
  const int steps = static_cast<int>(60 + 40 * kills);
  Child undisturbed(job("undisturbed", steps, 0, false));
  ASSERT_EQ(undisturbed.wait(kLongestRun), 0) << undisturbed.errors();
  ASSERT_NE(weights_of(undisturbed), "");

  Child job(this->job("killed", steps, 2, true));
  long made = 0;
  for (const auto deadline = Clock::now() + kLongestRun; made < kills && !job.has_ended() && Clock::now() < deadline;) {
    std::vector<pid_t> ranks = ranks_of(job);
    for (const auto start = Clock::now(); ranks.empty() && !job.has_ended() && Clock::now() < start + kLongestStart;
         ranks = ranks_of(job))
      std::this_thread::sleep_for(milliseconds(2));
    if (ranks.empty()) break;
    std::this_thread::sleep_for(milliseconds(random() % 700));
    ranks = ranks_of(job);
    if (ranks.empty()) continue;
    if (::kill(ranks[random() % ranks.size()], SIGKILL) == 0) ++made;
    std::this_thread::sleep_for(milliseconds(100));  // until lockrun has ended the others
  }
  EXPECT_EQ(job.wait(kLongestRun), 0) << job.errors();
  EXPECT_EQ(weights_of(job), weights_of(undisturbed));
  EXPECT_GE(made, std::min(kills, 3L)) << "the training ended before";
  EXPECT_TRUE(job.nothing_left());
  const nlohmann::json attempts = nlohmann::json::parse(std::ifstream(report_file()))["attempts"];
  EXPECT_GT(attempts.size(), 1U);
  std::int64_t newest = 0;
  for (const nlohmann::json& attempt : attempts) {
    if (attempt["resumed_step"].is_null()) continue;
    EXPECT_GE(attempt["resumed_step"].get<std::int64_t>(), newest) << attempt.dump();
    newest = attempt["resumed_step"].get<std::int64_t>();
  }
  EXPECT_EQ(attempts.back()["step"], steps);
  std::printf("%s: %ld kills, %zu attempts\n", GetParam(), made, attempts.size());
}
INSTANTIATE_TEST_SUITE_P(Strategies, RestartSoak,
                         ::testing::Values("ddp", "zero", "model_parallel", "parameter_server"));

}  // namespace
}  // namespace lockstep::testing

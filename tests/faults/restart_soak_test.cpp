// Kills ranks of a training at random moments, again and again: lockrun --max-restarts continues from the newest
// checkpoint each time, and all losses and the final weights have the bits of an undisturbed run. restart_rank trains
// by a strategy; own_loop and trainer are resume_rank, with all the state that a training can have, in mid-epoch.
//
// LOCKSTEP_SOAK_RESTARTS: the number of kills for each of them (5). LOCKSTEP_SOAK_SEED: the seed of the moments and
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
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "lockstep/core/environment.h"
#include "tests/faults/child.h"
#include "tests/faults/rank_process.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Words = std::vector<std::string>;

constexpr int kStepsOfEpoch = 7;  // of resume_rank
constexpr std::chrono::seconds kLongestRun(1800), kLongestStart(120);

class RestartSoak : public ::testing::TestWithParam<const char*> {
 protected:
  RestartSoak() {
    std::string pattern = ::testing::TempDir() + "lockstep-restart-soak-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~RestartSoak() override { fs::remove_all(folder_); }

  std::vector<pid_t> running(const Child& job) const {
    return processes_of(job, has_loop() ? RESUME_RANK : RESTART_RANK);
  }
  std::string report_file() const { return folder_ + "/report.json"; }

  // While this file exists, no rank makes its last step.
  std::string hold_file() const { return folder_ + "/hold"; }

  Words job(const std::string& name, int steps, int pause_ms, bool in_background) const {
    const std::string strategy = GetParam();
    Words words = {LOCKRUN, "--no-fold", "--no-prefix", "--max-restarts", "100000", "--report", report_file()};
    const Words ranks = strategy == "parameter_server" ? Words{"--ps", "1", "--workers", "2"} : Words{"-n", "2"};
    words.insert(words.end(), ranks.begin(), ranks.end());
    if (has_loop())
      words.insert(words.end(), {RESUME_RANK, strategy == "trainer" ? "loop=trainer" : "loop=own",
                                 fmt::format("epochs={}", steps / kStepsOfEpoch), "losses=" + losses_file(name)});
    else
      words.insert(words.end(), {RESTART_RANK, "strategy=" + strategy, fmt::format("steps={}", steps)});
    words.insert(words.end(), {"folder=" + folder_ + "/" + name, fmt::format("pause_ms={}", pause_ms),
                               fmt::format("background={}", in_background ? 1 : 0), "hold=" + hold_file()});
    return words;
  }
  bool has_loop() const { return GetParam() == std::string("own_loop") || GetParam() == std::string("trainer"); }
  std::string losses_file(const std::string& name) const { return folder_ + "/" + name + ".losses"; }

  // The loss of each step. One that was made again after a restart must have the same bits.
  std::map<int, std::string> losses_of(const std::string& name) const {
    std::map<int, std::string> losses;
    std::ifstream file(losses_file(name));
    std::string loss;
    for (int step = 0; file >> step >> loss;) {
      const auto [known, is_new] = losses.emplace(step, loss);
      EXPECT_TRUE(is_new || known->second == loss) << "step " << step << ": " << known->second << ", then " << loss;
    }
    return losses;
  }

 private:
  std::string folder_;
};

// Weights, and a Trainer's history. Ranks print in any order.
std::set<std::string> results_of(const Child& job) {
  std::set<std::string> lines;
  std::istringstream output(job.output());
  for (std::string line; std::getline(output, line);) lines.insert(line);
  return lines;
}

TEST_P(RestartSoak, EveryRestartContinuesAndTheWeightsHaveTheBitsOfAnUndisturbedRun) {
  const long kills = env::integer("LOCKSTEP_SOAK_RESTARTS", 1, 1'000'000).value_or(5);
  const long seed =
      env::integer("LOCKSTEP_SOAK_SEED", 0, 0x7fffffff).value_or(static_cast<long>(std::random_device()() >> 2));
  std::printf("%s: seed %ld, %ld kills\n", GetParam(), seed, kills);
  std::fflush(stdout);
  std::mt19937 random(static_cast<std::uint32_t>(seed));
  // An attempt makes some tens of steps before the next kill. A training that reaches its last step too early waits
  // there for the kills that are left.
  const int steps = static_cast<int>(60 + 40 * kills) / kStepsOfEpoch * kStepsOfEpoch;
  Child undisturbed(job("undisturbed", steps, 0, false));
  ASSERT_EQ(undisturbed.wait(kLongestRun), 0) << undisturbed.errors();
  ASSERT_FALSE(results_of(undisturbed).empty());

  std::ofstream(hold_file()) << "until all kills are done\n";
  Child job(this->job("killed", steps, /*pause_ms=*/10, true));
  long made = 0;
  for (const auto deadline = Clock::now() + kLongestRun; made < kills && !job.has_ended() && Clock::now() < deadline;) {
    std::vector<pid_t> ranks = running(job);
    for (const auto start = Clock::now(); ranks.empty() && !job.has_ended() && Clock::now() < start + kLongestStart;
         ranks = running(job))
      std::this_thread::sleep_for(milliseconds(2));
    if (ranks.empty()) break;
    std::this_thread::sleep_for(milliseconds(random() % 700));
    ranks = running(job);
    if (ranks.empty()) continue;
    if (::kill(ranks[random() % ranks.size()], SIGKILL) == 0) ++made;
    std::this_thread::sleep_for(milliseconds(100));  // until lockrun has ended the others
  }
  fs::remove(hold_file());
  EXPECT_EQ(job.wait(kLongestRun), 0) << job.errors();
  EXPECT_EQ(results_of(job), results_of(undisturbed));
  if (has_loop()) {
    EXPECT_EQ(losses_of("killed"), losses_of("undisturbed"));
    EXPECT_EQ(losses_of("undisturbed").size(), static_cast<std::size_t>(steps));
  }
  EXPECT_EQ(made, kills) << "the training ended before";
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
                         ::testing::Values("ddp", "zero", "model_parallel", "parameter_server", "own_loop", "trainer"));

}  // namespace
}  // namespace lockstep::testing

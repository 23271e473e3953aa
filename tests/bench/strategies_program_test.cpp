// bench/strategies as users run it: one line per strategy and number of devices, its keys, and refused arguments.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/train/data_parallel.h"
#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

std::vector<nlohmann::json> rows_of(const std::vector<std::string>& flags) {
  std::vector<std::string> command = {STRATEGIES, "--model", "resnet20", "--steps", "1", "--rounds", "1", "--json"};
  command.insert(command.end(), flags.begin(), flags.end());
  Child program(command, {.environment = {{"OMP_NUM_THREADS", "1"}}});
  EXPECT_EQ(program.wait(std::chrono::seconds(300)), 0) << program.errors();
  std::vector<nlohmann::json> rows;
  std::istringstream lines(program.output());
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

TEST(StrategiesProgram, HasALineAStrategyAndNumberOfDevices) {
  const auto rows = rows_of({"--strategy", "towers", "--devices", "1", "2"});
  ASSERT_EQ(rows.size(), 2u);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i]["devices"], i + 1);
    EXPECT_EQ(rows[i]["strategy"], "towers");
    EXPECT_EQ(rows[i]["equals_ddp"], "not compared");
    for (const char* key : {"samples_per_s", "peak_rss_mb", "final_loss"})
      EXPECT_GT(rows[i][key].get<double>(), 0) << key;
    EXPECT_EQ(rows[i]["bytes_per_step"] == 0, i == 0) << "one device holds the variables and the clone";
  }
  EXPECT_EQ(rows_of({"--strategy", "ddp", "--devices", "2"}).at(0)["equals_ddp"], "bits");
  const nlohmann::json module = rows_of({"--strategy", train::DataParallel::kKind, "--devices", "2"}).at(0);
  EXPECT_GT(module["samples_per_s"].get<double>(), 0);
  EXPECT_EQ(module["bytes_per_step"], "-");
}

TEST(StrategiesProgram, RefusesWhatMakesNoSense) {
  const auto refused = [](const std::vector<std::string>& flags, const std::string& message) {
    std::vector<std::string> command = {STRATEGIES};
    command.insert(command.end(), flags.begin(), flags.end());
    Child program(command);
    EXPECT_EQ(program.wait(std::chrono::seconds(60)), 2) << message;
    EXPECT_THAT(program.errors(), HasSubstr(message));
  };
  refused({"--strategy", "horovod"}, "unknown strategy 'horovod': expected one of ddp, mirrored");
  refused({"--strategy", "mirror"}, "unknown strategy 'mirror'");
  refused({"--devices", "1", "two"}, "unknown argument 'two'");
  refused({"2"}, "unknown argument '2'");
  refused({"--devices", "65"}, "--devices 65: expected 1 to 64");
  refused({"--steps", "0"}, "--steps and --rounds must be positive");
}

}  // namespace
}  // namespace lockstep::testing

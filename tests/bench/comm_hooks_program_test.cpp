// bench/comm_hooks as users run it: one line per hook, the bytes of each, and refused arguments.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

TEST(CommHooksProgram, HasALineAHookWithItsBytes) {
  Child program(
      {COMM_HOOKS, "--model", "resnet20", "--hooks", "bf16,int8,local_sgd", "--steps", "2", "--rounds", "1", "--json"},
      {.environment = {{"OMP_NUM_THREADS", "1"}}});
  EXPECT_EQ(program.wait(std::chrono::seconds(600)), 0) << program.errors();
  std::vector<nlohmann::json> rows;
  std::istringstream lines(program.output());
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(rows.size(), 4u);
  const std::vector<std::pair<std::string, double>> expected = {
      {"none", 1}, {"bf16", 0.5}, {"int8", 0.25}, {"local_sgd", 0.5}};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i]["hook"], expected[i].first);
    EXPECT_NEAR(rows[i]["sent_of_plain"].get<double>(), expected[i].second, 0.05) << expected[i].first;
    EXPECT_GT(rows[i]["step_ms"].get<double>(), 0);
  }
}

TEST(CommHooksProgram, RefusesWhatMakesNoSense) {
  const auto refused = [](const std::vector<std::string>& flags, const std::string& message) {
    std::vector<std::string> command = {COMM_HOOKS};
    command.insert(command.end(), flags.begin(), flags.end());
    Child program(command);
    EXPECT_EQ(program.wait(std::chrono::seconds(60)), 2) << message;
    EXPECT_THAT(program.errors(), HasSubstr(message));
  };
  refused({"--hooks", "bf16,zip"}, "unknown hook 'zip'");
  refused({"bf16"}, "unknown argument 'bf16'");
  refused({"--steps", "0"}, "--steps and --rounds must be positive");
}

}  // namespace
}  // namespace lockstep::testing

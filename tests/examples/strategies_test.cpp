// The example prints the output promised in its opening comment, with each strategy.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/faults/child.h"
#include "tests/support/strategies_of_one_process.h"

namespace lockstep::testing {
namespace {

// Returns the lines between the first command and the next sentence.
std::string promised_lines() {
  std::ifstream source(STRATEGIES_SOURCE);
  std::string text;
  bool begun = false;
  for (std::string line; std::getline(source, line) && line.rfind("// mirrored", 0) != 0;) {
    if (begun && line.rfind("//   ", 0) == 0) text += line.substr(5) + "\n";
    begun = begun || line == "//   examples/strategies towers";
  }
  return text;
}

std::string without_bytes(const std::string& output) { return output.substr(0, output.find("cpu")); }

TEST(StrategiesExample, PrintsWhatItPromises) {
  const std::string promised = promised_lines();
  ASSERT_GT(promised.size(), 100u);
  Child towers({STRATEGIES, "towers"});
  EXPECT_EQ(towers.wait(std::chrono::seconds(60)), 0) << towers.errors();
  EXPECT_EQ(towers.output(), promised);
  for (const std::string& strategy : testing::strategies_of_one_process()) {
    Child other({STRATEGIES, strategy});
    EXPECT_EQ(other.wait(std::chrono::seconds(60)), 0) << other.errors();
    EXPECT_EQ(without_bytes(other.output()), without_bytes(promised)) << strategy;
  }
}

TEST(StrategiesExample, DdpLearnsTheSame) {
  Child ddp({LOCKRUN, "-n", "2", "--no-prefix", STRATEGIES, "ddp"});
  EXPECT_EQ(ddp.wait(std::chrono::seconds(60)), 0) << ddp.errors();
  const std::string promised = without_bytes(promised_lines()), first = "1 physical CPU, 2 logical\n";
  EXPECT_EQ(without_bytes(ddp.output()), "1 physical CPU, 1 logical\n" + promised.substr(first.size()));
}

TEST(StrategiesExample, WorkersOfAParameterServerLearnTheSame) {
  Child workers({LOCKRUN, "--ps", "1", "--workers", "2", "--no-prefix", STRATEGIES, "parameter_server"});
  EXPECT_EQ(workers.wait(std::chrono::seconds(60)), 0) << workers.errors();
  const std::string promised = without_bytes(promised_lines()), first = "1 physical CPU, 2 logical\n";
  EXPECT_EQ(without_bytes(workers.output()), "1 physical CPU, 1 logical\n" + promised.substr(first.size()));
}

TEST(StrategiesExample, AnUnknownStrategyIsListedAgainstTheKnownOnes) {
  Child unknown({STRATEGIES, "horovod"});
  EXPECT_NE(unknown.wait(std::chrono::seconds(60)), 0);
  EXPECT_NE(unknown.errors().find("unknown strategy 'horovod': expected one of ddp, mirrored"), std::string::npos)
      << unknown.errors();
}

}  // namespace
}  // namespace lockstep::testing

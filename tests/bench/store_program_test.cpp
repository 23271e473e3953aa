// bench/store as users run it: its output, not its speed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

TEST(StoreProgram, ReportsEachOperation) {
  for (const char* active : {"0", "3"}) {
    Child child({STORE, "--clients", "40", "--active", active, "--seconds", "0.3", "--value-bytes", "1K", "--json"});
    ASSERT_EQ(child.wait(), 0) << child.errors();
    std::istringstream lines(child.output());
    std::string names;
    for (std::string line; std::getline(lines, line);) {
      const auto row = nlohmann::json::parse(line);
      names += row["operation"].get<std::string>() + " ";
      EXPECT_EQ(row["clients"], 40);
      EXPECT_EQ(row["active"], *active == '0' ? 40 : 3);
      EXPECT_GE(row["requests"], 40);
      EXPECT_LE(row["p50_us"], row["p99_us"]);
      EXPECT_LE(row["p99_us"], row["max_us"]);
      EXPECT_GT(row["server_mib"], 0);
    }
    EXPECT_EQ(names, "set get add ");
  }
}

TEST(StoreProgram, RefusesWhatItCannotMeasure) {
  for (const char* flag : {"--clients=0", "--seconds=0", "--value-bytes=9M", "--nonsense", "nonsense"}) {
    Child child({STORE, flag});
    EXPECT_EQ(child.wait(), 2) << flag;
    EXPECT_THAT(child.errors(), HasSubstr("store: "));
  }
}

}  // namespace
}  // namespace lockstep::testing

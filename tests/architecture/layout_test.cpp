// Where files lie: programs of bench/ on top and what they share in bench/lib.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/architecture/sources.h"
#include "tests/support/pattern.h"

namespace {

bool has_main(const std::string& text) { return !lockstep::testing::find_matches_by_line(text, R"(^int main\()").empty(); }

TEST(Bench, HasItsProgramsOnTopAndTheRestInLib) {
  int programs = 0;
  visit_sources({"bench"}, [&](const std::string& path, const std::string& text) {
    const std::string folder = std::filesystem::path(path).parent_path().generic_string();
    if (folder == "bench") {
      EXPECT_TRUE(has_main(text)) << path << " is no program: it belongs into bench/lib";
      ++programs;
    } else if (folder == "bench/lib") {
      EXPECT_FALSE(has_main(text)) << path << " is a program: it belongs into bench";
    } else {
      EXPECT_EQ(folder, "bench/peers") << path << ": C++ of bench/ lies in bench, bench/lib or bench/peers";
    }
  });
  EXPECT_GE(programs, 6);
}

}  // namespace

// The places of files, and that they are listed: programs of bench/ at the top and their common parts in bench/lib;
// every test program in tests/README.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "tests/architecture/sources.h"
#include "tests/support/page.h"
#include "tests/support/pattern.h"

namespace {

bool has_main(const std::string& text) {
  return !lockstep::testing::find_matches_by_line(text, R"(^int main\()").empty();
}

TEST(Bench, HasItsProgramsOnTopAndTheRestInLib) {
  int programs = 0;
  visit_sources({"bench"}, [&](const std::string& path, const std::string& text) {
    const std::string folder = std::filesystem::path(path).parent_path().generic_string();
    if (folder == "bench") {
      EXPECT_TRUE(has_main(text)) << path << " is not a program: it belongs into bench/lib";
      ++programs;
    } else if (folder == "bench/lib") {
      EXPECT_FALSE(has_main(text)) << path << " is a program: it belongs into bench";
    } else {
      EXPECT_EQ(folder, "bench/peers") << path << ": C++ of bench/ belongs into bench, bench/lib or bench/peers";
    }
  });
  EXPECT_GE(programs, 6);
}

// -- how long files are

// Headers that may be longer than others, with the reason.
const std::map<std::string, const char*> kLongHeaders = {
    {"include/lockstep/comm/process_group.h", "what users read of comm, in one place"},
    {"src/comm/host/reduce/reduce_loops.h", "templates that two files instantiate"},
};

TEST(Sources, HaveAtMost400LinesAndHeaders150) {
  std::set<std::string> excused;
  visit_sources({"include", "src", "kernels", "launcher", "bench", "examples", "tests"},
                [&](const std::string& path, const std::string& text) {
                  const auto lines = std::count(text.begin(), text.end(), '\n');
                  const bool is_header =
                      path.size() > 2 && path.compare(path.size() - 2, 2, ".h") == 0 && path.rfind("tests/", 0) != 0;
                  EXPECT_LE(lines, 400) << path;
                  if (!is_header || lines <= 150) return;
                  EXPECT_EQ(kLongHeaders.count(path), 1u) << path << " has " << lines << " lines";
                  excused.insert(path);
                });
  EXPECT_EQ(excused.size(), kLongHeaders.size()) << "one of the excused headers is short now";
}

// -- strategies

// The names in the table of src/train/strategies/kinds.cpp.
std::vector<std::string> strategy_names() {
  std::vector<std::string> names;
  const std::string table = lockstep::testing::text_of_file(LOCKSTEP_SOURCE_ROOT "/src/train/strategies/kinds.cpp");
  for (const auto& match : lockstep::testing::find_matches(table, R"re(\{\{"([a-z_]+)",)re")) names.push_back(match[1]);
  return names;
}

// A strategy is a short file, which opens with a picture of who holds what, and says what travels.
TEST(Strategies, AreShortFilesThatOpenWithAPicture) {
  std::set<std::string> drawn;
  visit_sources({"src/train/strategies"}, [&](const std::string& path, const std::string& text) {
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 250) << path;
    const std::string opening = text.substr(0, text.find("#include"));
    if (opening.find("\n//     ") != std::string::npos && opening.find("Traffic: ") != std::string::npos)
      drawn.insert(std::filesystem::path(path).stem().string());
  });
  std::vector<std::string> names = strategy_names();
  EXPECT_GE(names.size(), 8U);
  names.insert(names.end(), {"deploy", "model_parallel_ranks"});
  for (const std::string& name : names) EXPECT_EQ(drawn.count(name) + drawn.count(name + "_strategy"), 1U) << name;
}

// All others look at capabilities: a new strategy needs no change in them.
TEST(Strategies, OnlyTheTableAndTheirOwnFilesNameThem) {
  visit_sources({"src"}, [&](const std::string& path, const std::string& text) {
    if (path.rfind("src/train/strategies/kinds.", 0) == 0) return;
    for (const std::string& name : strategy_names()) {
      if (path.find("/" + name) != std::string::npos) continue;  // mirrored.cpp, model_parallel/pipeline_stage.h
      const std::string pattern = "\"" + name + "\"|\\bmake_" + name + "\\b";
      EXPECT_TRUE(lockstep::testing::find_matches_by_line(text, pattern).empty())
          << path << " names strategy " << name << ": ask for a capability (lockstep/train/strategies.h)";
    }
  });
}

// -- tests/README.md

namespace fs = std::filesystem;
using lockstep::testing::text_of_file;

struct TestPrograms {
  std::set<std::string> programs;  // "comm/comm_test"
  std::set<std::string> tests;     // Meson's names, "conformance_" for 'conformance_@0@'
};

TestPrograms built_programs() {
  TestPrograms built;
  const fs::path root = fs::path(LOCKSTEP_SOURCE_ROOT) / "tests";
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.path().filename() != "meson.build") continue;
    const std::string folder = entry.path().parent_path().lexically_relative(root).generic_string();
    const std::string text = lockstep::testing::replace_matches(text_of_file(entry.path().string()), "#[^\n]*", "");
    for (const auto& match : lockstep::testing::find_matches(text, R"(\bexecutable\('(\w+_test)')"))
      built.programs.insert(folder + "/" + match[1]);
    for (const auto& match : lockstep::testing::find_matches(text, R"(\btest\('([^'@]+))"))
      built.tests.insert(match[1]);
  }
  return built;
}

// One row per program: its path below tests/, the names of its tests, and what it tests.
TEST(TestsPage, HasEveryProgramOnce) {
  const TestPrograms built = built_programs();
  std::set<std::string> listed;
  std::string names;
  const std::string page = text_of_file(LOCKSTEP_SOURCE_ROOT "/tests/README.md");
  for (const auto& row : lockstep::testing::find_matches_by_line(page, R"(^\| `(\w+/\w+)` \| ([^|]+) \| [^|]+ \|$)")) {
    EXPECT_TRUE(listed.insert(row[1]).second) << "tests/README.md has two rows for " << row[1];
    EXPECT_EQ(built.programs.count(row[1]), 1U)
        << "tests/README.md has a row for " << row[1] << ", which no meson.build builds";
    names += row[2] + "\n";
  }
  for (const std::string& program : built.programs)
    EXPECT_EQ(listed.count(program), 1U) << "tests/README.md has no row for " << program;
  for (const std::string& test : built.tests)
    EXPECT_NE(names.find("`" + test), std::string::npos) << "tests/README.md does not name the test '" << test << "'";
  EXPECT_GE(listed.size(), 35U);
}

}  // namespace

// Compares CONTRIBUTING's table of what to add with the tree: a row names one example and every file that mentions it,
// so that a contributor finds all files to change.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/support/page.h"
#include "tests/support/pattern.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

// Programs that only use the example, comparisons with other frameworks, tests of PyTorch's own hooks, and results.
constexpr const char* kLeftOut[] = {"bench/peers/", "docs/results/", "docs/coming-from", "tests/torch_backend/",
                                    "tests/architecture/to_add_test.cpp"};

struct AddRow {
  std::string what;
  std::vector<std::string> examples;  // in the form of spaced_words()
  std::set<std::string> files;
};

// "GroupNorm", "group_norm" and "groupnorm" are one word.
std::string spaced_words(const std::string& text) {
  std::string words;
  for (const char c : text)
    if (c != '_') words += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return words;
}

std::vector<std::string> quoted_in(const std::string& cell) {
  std::vector<std::string> all;
  for (const auto& match : find_matches(cell, "`([^`]+)`")) all.push_back(match[1]);
  return all;
}

std::vector<AddRow> rows() {
  const std::string page = text_of_file(LOCKSTEP_SOURCE_ROOT "/CONTRIBUTING.md");
  const std::size_t begin = page.find("\n| to add | for example | files |");
  std::vector<AddRow> all;
  if (begin == std::string::npos) return all;
  const std::string table = page.substr(begin, page.find("\n\n", begin) - begin);
  for (const auto& cells : find_matches(table, R"(\n\| ([^|\n]+) \| ([^|\n]+) \| ([^|\n]+) \|)")) {
    if (cells[1] == "to add") continue;
    AddRow row{cells[1], quoted_in(cells[2]), {}};
    for (std::string& example : row.examples) example = spaced_words(example);
    for (const std::string& quoted : quoted_in(cells[3]))
      if (quoted.find('/') != std::string::npos) row.files.insert(quoted);
    all.push_back(std::move(row));
  }
  return all;
}

std::map<std::string, std::string> files_of_tree() {
  std::map<std::string, std::string> files;
  for (const char* folder : {"include", "src", "kernels", "launcher", "bench", "tests", "docs", "scripts"})
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(LOCKSTEP_SOURCE_ROOT) / folder)) {
      if (!entry.is_regular_file() || entry.file_size() > 1 << 20) continue;
      const std::string path = fs::relative(entry.path(), LOCKSTEP_SOURCE_ROOT).string();
      const bool is_left_out = std::any_of(std::begin(kLeftOut), std::end(kLeftOut),
                                           [&](const char* prefix) { return path.rfind(prefix, 0) == 0; });
      if (!is_left_out) files[path] = spaced_words(path + "\n" + text_of_file(entry.path().string()));
    }
  return files;
}

TEST(ToAdd, EachRowNamesTheFilesThatNameItsExample) {
  const auto files = files_of_tree();
  ASSERT_GT(files.size(), 500u);
  ASSERT_GE(rows().size(), 10u);
  for (const AddRow& row : rows()) {
    SCOPED_TRACE(row.what);
    ASSERT_FALSE(row.examples.empty());
    std::set<std::string> naming;
    for (const auto& [path, words] : files)
      for (const std::string& example : row.examples)
        if (words.find(example) != std::string::npos) naming.insert(path);
    for (const std::string& path : naming) EXPECT_TRUE(row.files.count(path) != 0) << "the row lacks " << path;
    for (const std::string& path : row.files)
      EXPECT_TRUE(naming.count(path) != 0) << path << " does not exist, or does not name the example";
  }
}

// Adding one of these must touch only a few files.
TEST(ToAdd, StaysCheap) {
  const std::map<std::string, std::size_t> most = {{"an optimizer", 10}, {"a unary function", 10}, {"a strategy", 8}};
  std::size_t found = 0;
  for (const AddRow& row : rows()) {
    const auto limit = most.find(row.what);
    if (limit == most.end()) continue;
    ++found;
    EXPECT_LE(row.files.size(), limit->second) << row.what;
  }
  EXPECT_EQ(found, most.size());
}

}  // namespace
}  // namespace lockstep::testing

// README's program is the example, word for word, and what docs/ shows is code of a test: what people copy is what was compiled and run.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

std::string read_page(const std::string& name) {
  std::ifstream file(std::string(LOCKSTEP_SOURCE_ROOT) + "/" + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What stands between the fences.
std::vector<std::string> code_in(const std::string& page) {
  const std::string fence = "```cpp\n";
  std::vector<std::string> pieces;
  for (std::size_t at = page.find(fence); at != std::string::npos; at = page.find(fence, at)) {
    at += fence.size();
    pieces.push_back(page.substr(at, page.find("```", at) - at));
  }
  return pieces;
}

// As it stands in a function.
std::string indented(const std::string& code) {
  std::string text;
  bool at_line_start = true;
  for (const char c : code) {
    if (at_line_start && c != '\n') text += "  ";
    text += c;
    at_line_start = c == '\n';
  }
  return text;
}

TEST(Readme, ItsProgramIsTheExample) {
  const std::string example = read_page("examples/hello_ddp.cpp");
  const auto programs = code_in(read_page("README.md"));
  ASSERT_FALSE(programs.empty());
  EXPECT_GT(programs[0].size(), 500u);
  EXPECT_NE(example.find(programs[0]), std::string::npos) << "README's program and examples/hello_ddp.cpp differ";
}

TEST(Docs, TheirCodeIsThatOfATest) {
  const std::string tested = read_page("tests/device/doc_examples_test.cpp");
  int pieces = 0;
  for (const auto& page : std::filesystem::directory_iterator(std::string(LOCKSTEP_SOURCE_ROOT) + "/docs")) {
    if (page.path().extension() != ".md") continue;
    const std::string name = "docs/" + page.path().filename().string();
    for (const std::string& code : code_in(read_page(name))) {
      EXPECT_NE(tested.find(indented(code)), std::string::npos) << name << " shows what tests/device/doc_examples_test.cpp has not:\n"
                                                                << code;
      ++pieces;
    }
  }
  EXPECT_GE(pieces, 2);
}

TEST(Readme, ItsLinksLeadSomewhere) {
  const std::string readme = read_page("README.md");
  int links = 0;
  for (std::size_t at = readme.find("]("); at != std::string::npos; at = readme.find("](", at + 2)) {
    const std::string target = readme.substr(at + 2, readme.find(')', at) - at - 2);
    if (target.rfind("http", 0) == 0 || target[0] == '#') continue;
    EXPECT_TRUE(std::ifstream(std::string(LOCKSTEP_SOURCE_ROOT) + "/" + target).good()) << target;
    ++links;
  }
  EXPECT_GT(links, 8);
}

}  // namespace

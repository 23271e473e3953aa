// Compares README and docs/ with the tree: code to copy is code that was compiled, links have targets, every page is in
// the index, and every environment variable and message that a page explains exists. tests/docs runs the pages'
// commands.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "tests/support/page.h"
#include "tests/support/pattern.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

const std::string kRoot = LOCKSTEP_SOURCE_ROOT;

std::string page(const std::string& name) { return text_of_file(kRoot + "/" + name); }

// Code as it appears in a function.
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

std::vector<std::string> code_in(const std::string& name) {
  std::vector<std::string> pieces;
  for (const Block& block : blocks_of(page(name)))
    if (block.language == "cpp") pieces.push_back(block.text);
  return pieces;
}

// Programs that the build compiles and tests run.
std::vector<std::string> compiled_sources() {
  std::vector<std::string> sources = {
      page("tests/device/doc_examples_test.cpp"),   page("tests/data/doc_examples_test.cpp"),
      page("tests/ddp/doc_examples_test.cpp"),      page("tests/train/summary_doc_test.cpp"),
      page("tests/train/trainer_doc_test.cpp"),     page("tests/docs/rings.cpp"),
      page("tests/data/tokenizers_doc_test.cpp"),   page("tests/faults/spawn_rank.cpp"),
      page("tests/device/default_device_test.cpp"), page("tests/architecture/outside/program.cpp"),
      page("tests/models/onnx_doc_test.cpp")};
  for (const auto& entry : fs::directory_iterator(kRoot + "/examples"))
    if (entry.path().extension() == ".cpp") sources.push_back(text_of_file(entry.path().string()));
  return sources;
}

TEST(Readme, FitsOnAFirstVisit) {
  const std::string readme = page("README.md");
  EXPECT_LE(std::count(readme.begin(), readme.end(), '\n'), 140) << "move text to docs/";
}

TEST(Readme, ItsProgramIsTheExample) {
  const auto programs = code_in("README.md");
  ASSERT_FALSE(programs.empty());
  EXPECT_GT(programs[0].size(), 500u);
  EXPECT_NE(page("examples/hello_ddp.cpp").find(programs[0]), std::string::npos)
      << "README's program and examples/hello_ddp.cpp differ";
}

TEST(Pages, TheirCodeIsCompiled) {
  const auto sources = compiled_sources();
  int pieces = 0;
  for (const std::string& name : pages_below(kRoot))
    for (const std::string& code : code_in(name)) {
      const auto has_it = [&](const std::string& source) {
        return source.find(code) != std::string::npos || source.find(indented(code)) != std::string::npos;
      };
      EXPECT_TRUE(std::any_of(sources.begin(), sources.end(), has_it))
          << name << " shows code that is in none of compiled_sources():\n"
          << code;
      ++pieces;
    }
  EXPECT_GE(pieces, 8);
}

// "sh" and "console" are run, "bash" under Slurm, "cpp" is compiled, "python" is only shown; every block must name its
// language.
TEST(Pages, EveryBlockSaysItsLanguage) {
  const std::set<std::string> known = {"cpp", "sh", "console", "bash", "text", "yaml", "python"};
  for (const std::string& name : pages_below(kRoot))
    for (const Block& block : blocks_of(page(name)))
      EXPECT_EQ(known.count(block.language), 1u) << name << " has a block in '" << block.language << "':\n"
                                                 << block.text;
}

// A sentence about a link without a target; empty if it has one.
std::string fault_of(const std::string& from, const std::string& link) {
  if (link.rfind("http", 0) == 0) return "";
  const std::size_t hash = std::min(link.find('#'), link.size());
  const fs::path file = hash == 0 ? fs::path(from) : fs::path(from).parent_path() / link.substr(0, hash);
  if (!fs::exists(fs::path(kRoot) / file)) return from + ": " + link + " does not exist";
  if (hash == link.size()) return "";
  const auto anchors = anchors_of(page(file.string()));
  const bool found = std::find(anchors.begin(), anchors.end(), link.substr(hash + 1)) != anchors.end();
  return found ? "" : from + ": " + link + " names no heading there";
}

TEST(Pages, TheirLinksLeadSomewhere) {
  auto names = pages_below(kRoot);
  for (const char* outside : {"CONTRIBUTING.md", "tests/README.md"}) names.push_back(outside);
  int links = 0;
  for (const std::string& name : names)
    for (const std::string& link : links_of(page(name))) {
      EXPECT_EQ(fault_of(name, link), "");
      ++links;
    }
  EXPECT_GT(links, 60);
  EXPECT_NE(fault_of("README.md", "docs/none.md"), "");
  EXPECT_NE(fault_of("README.md", "docs/launching.md#none"), "");
}

// "see docs/ddp.md", and "docs/ddp.md" alone: the pages that a comment or a message names.
std::vector<std::string> pages_named_in(const std::string& source) {
  std::vector<std::string> names;
  for (std::size_t at = source.find("docs/"); at != std::string::npos; at = source.find("docs/", at + 1)) {
    const auto named = find_match(source.substr(at, 60), R"(^docs/[a-z_/]+\.md)");
    if (!named.empty()) names.push_back(named[0]);
  }
  return names;
}

TEST(Pages, ThatSourcesNameExist) {
  int named = 0;
  for (const char* folder : {"include", "src", "kernels", "launcher", "bench", "examples"})
    for (const auto& entry : fs::recursive_directory_iterator(kRoot + "/" + folder)) {
      if (!entry.is_regular_file()) continue;
      for (const std::string& name : pages_named_in(text_of_file(entry.path().string()))) {
        EXPECT_TRUE(fs::exists(kRoot + "/" + name)) << entry.path() << " names " << name;
        ++named;
      }
    }
  EXPECT_GT(named, 10);
}

TEST(Pages, TheIndexHasThemAll) {
  const auto links = links_of(page("docs/README.md"));
  for (const std::string& name : pages_below(kRoot)) {
    const std::string file = fs::path(name).lexically_relative("docs").generic_string();
    EXPECT_EQ(std::count(links.begin(), links.end(), file), name == "docs/README.md" ? 0 : 1)
        << "docs/README.md does not list " << name;
  }
}

// -- docs/environment.md

TEST(EnvironmentPage, HasEveryVariableOfTheLibrary) {
  const std::string text = page("docs/environment.md");
  const auto variables = find_matches(page("include/lockstep/core/environment.h"), R"rx("(LOCKSTEP_\w+)")rx");
  EXPECT_GE(variables.size(), 20u);
  for (const auto& variable : variables)
    EXPECT_NE(text.find("`" + variable[1] + "`"), std::string::npos) << "docs/environment.md lacks " << variable[1];
}

// -- docs/architecture.md

TEST(ArchitecturePage, HasEveryFolderOfTheLibrary) {
  const std::string text = page("docs/architecture.md");
  for (const char* root : {"src", "kernels"})
    for (const auto& entry : fs::recursive_directory_iterator(kRoot + "/" + root)) {
      const std::string folder = entry.path().lexically_relative(kRoot).generic_string();
      if (!entry.is_directory()) continue;
      const bool has_row = text.find("`" + folder + "`") != std::string::npos;
      EXPECT_TRUE(has_row || text.find("](../" + folder + "/README.md)") != std::string::npos)
          << "docs/architecture.md neither names " << folder << " nor links its README.md";
    }
  for (const auto& named : find_matches(text, "`((?:src|kernels)/[a-z_/]+)`"))
    EXPECT_TRUE(fs::is_directory(kRoot + "/" + named[1])) << "docs/architecture.md names " << named[1];
}

// -- docs/troubleshooting.md

// The text of all literals; a literal of several lines is joined.
std::string all_literals() {
  std::string text;
  for (const char* folder : {"src", "include", "launcher", "kernels"})
    for (const auto& entry : fs::recursive_directory_iterator(kRoot + "/" + folder))
      if (entry.path().extension() == ".cpp" || entry.path().extension() == ".h")
        text += text_of_file(entry.path().string());
  return replace_matches(text, "\"\\s*\"", "");
}

// "rank <n> died: <how>" to "rank ", " died: ".
std::vector<std::string> fixed_parts(const std::string& message) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < message.size();) {
    const std::size_t open = std::min(message.find('<', at), message.size());
    if (open > at) parts.push_back(message.substr(at, open - at));
    const std::size_t close = message.find('>', open);
    at = close == std::string::npos ? message.size() : close + 1;
  }
  return parts;
}

TEST(TroubleshootingPage, ItsMessagesAreTheCodes) {
  const std::string sources = all_literals();
  const auto rows = find_matches_by_line(page("docs/troubleshooting.md"), R"(^\| `([^`]+)` \| [^|]+ \| [^|]+ \|$)");
  for (const auto& row : rows)
    for (const std::string& part : fixed_parts(row[1]))
      EXPECT_NE(sources.find(part), std::string::npos)
          << "no source says '" << part << "', which docs/troubleshooting.md explains in\n"
          << row[1];
  EXPECT_GE(rows.size(), 40u);
}

}  // namespace
}  // namespace lockstep::testing

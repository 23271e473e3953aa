// docs/security.md agrees with the code: its table of limits is compared with the constants.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/support/pattern.h"

namespace {

using namespace lockstep::testing;

std::string read(const std::string& name) {
  std::ifstream file(std::string(LOCKSTEP_SOURCE_ROOT) + "/" + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string without(std::string text, char unwanted) {
  text.erase(std::remove(text.begin(), text.end(), unwanted), text.end());
  return text;
}

// Returns the number in "std::size_t{512} << 20", "100'000", "std::chrono::seconds(10)" or "64 * 1024", in the unit of
// the code.
double value_of_code(std::string code) {
  code = replace_matches(without(code, '\''),
                         R"((std::size_t|std::chrono::(milli)?seconds|milliseconds|seconds)[{(](\d+)[})])", "$3");
  if (const auto parts = find_match(code, R"(^(\d+) << (\d+)$)"); !parts.empty())
    return std::stod(parts[1]) * static_cast<double>(1ull << std::stoul(parts[2]));
  if (const auto parts = find_match(code, R"(^(\d+) \* (\d+)$)"); !parts.empty())
    return std::stod(parts[1]) * std::stod(parts[2]);
  if (matches(code, R"(\d+)")) return std::stod(code);
  return -1;
}

// "100,000", "8 MiB", "10 s"
double value_of_text(const std::string& text) {
  const auto parts = find_match(text, R"(^([\d,]+)(?: (KiB|MiB|s|bytes))?$)");
  if (parts.empty()) return -2;
  const double number = std::stod(without(parts[1], ','));
  return parts[2] == "KiB" ? number * 1024 : parts[2] == "MiB" ? number * 1024 * 1024 : number;
}

TEST(SecurityPage, ItsLimitsAreTheCodes) {
  const std::string page = read("docs/security.md");
  const auto rows = find_matches(page, R"(\| [^|]+ \| ([^|]+) \| `(\w+)` \| `([^|]+)` \|)");
  for (const auto& row : rows) {
    const std::string &text = row[1], &name = row[2], &file = row[3], code = read(file);
    // `kName = expression;` or `kName(number)`
    const auto found = find_match(code, "\\b" + name + R"((?: = ([^;,]+)[;,]|\(([^;,)]+)\)))");
    ASSERT_FALSE(found.empty()) << file << " lacks " << name;
    const std::string expression = found[1].empty() ? found[2] : found[1];
    EXPECT_EQ(value_of_code(expression), value_of_text(text))
        << name << " in " << file << " is " << expression << ", the page says " << text;
  }
  EXPECT_GE(rows.size(), 10);
  EXPECT_EQ(page.find("@@"), std::string::npos);
}

TEST(SecurityPage, ItsLinksLeadSomewhere) {
  const std::string page = read("docs/security.md");
  const auto links = find_matches(page, R"(\]\(\.\./([^)#]+)(#[^)]*)?\))");
  for (const auto& link : links) EXPECT_FALSE(read(link[1]).empty()) << link[1];
  EXPECT_GE(links.size(), 1);
}

}  // namespace

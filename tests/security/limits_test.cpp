// docs/security.md says what the code does: its table of limits is compared with the constants.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>

namespace {

std::string read(const std::string& name) {
  std::ifstream file(std::string(LOCKSTEP_SOURCE_ROOT) + "/" + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string without(std::string text, char unwanted) {
  text.erase(std::remove(text.begin(), text.end(), unwanted), text.end());
  return text;
}

// "std::size_t{512} << 20", "100'000", "std::chrono::seconds(10)", "64 * 1024": the number, in the unit that the code uses.
double value_of_code(std::string code) {
  code = std::regex_replace(without(code, '\''),
                            std::regex(R"((std::size_t|std::chrono::(milli)?seconds|milliseconds|seconds)[{(](\d+)[})])"), "$3");
  std::smatch parts;
  if (std::regex_match(code, parts, std::regex(R"((\d+) << (\d+))")))
    return std::stod(parts[1]) * static_cast<double>(1ull << std::stoul(parts[2]));
  if (std::regex_match(code, parts, std::regex(R"((\d+) \* (\d+))"))) return std::stod(parts[1]) * std::stod(parts[2]);
  if (std::regex_match(code, std::regex(R"(\d+)"))) return std::stod(code);
  return -1;
}

// "100,000", "8 MiB", "10 s"
double value_of_text(const std::string& text) {
  std::smatch parts;
  if (!std::regex_match(text, parts, std::regex(R"(([\d,]+)(?: (KiB|MiB|s|bytes))?)"))) return -2;
  const double number = std::stod(without(parts[1], ','));
  return parts[2] == "KiB" ? number * 1024 : parts[2] == "MiB" ? number * 1024 * 1024 : number;
}

TEST(SecurityPage, ItsLimitsAreTheCodes) {
  const std::string page = read("docs/security.md");
  const std::regex row(R"(\| [^|]+ \| ([^|]+) \| `(\w+)` \| `([^|]+)` \|)");
  int rows = 0;
  for (std::sregex_iterator it(page.begin(), page.end(), row), end; it != end; ++it, ++rows) {
    const std::string text = (*it)[1], name = (*it)[2], file = (*it)[3], code = read(file);
    std::smatch found;
    // `kName = expression;` or `kName(number)`
    ASSERT_TRUE(std::regex_search(code, found, std::regex("\\b" + name + R"((?: = ([^;,]+)[;,]|\(([^;,)]+)\)))")))
        << file << " lacks " << name;
    const std::string expression = found[1].matched ? found[1] : found[2];
    EXPECT_EQ(value_of_code(expression), value_of_text(text))
        << name << " in " << file << " is " << expression << ", the page says " << text;
  }
  EXPECT_GE(rows, 10);
  EXPECT_EQ(page.find("@@"), std::string::npos);
}

TEST(SecurityPage, ItsLinksLeadSomewhere) {
  const std::string page = read("docs/security.md");
  const std::regex link(R"(\]\(\.\./([^)#]+)(#[^)]*)?\))");
  int links = 0;
  for (std::sregex_iterator it(page.begin(), page.end(), link), end; it != end; ++it, ++links)
    EXPECT_FALSE(read((*it)[1]).empty()) << (*it)[1];
  EXPECT_GE(links, 1);
}

}  // namespace

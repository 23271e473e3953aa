// The names of Lockstep's environment variables stand in core/environment.h alone: elsewhere they are its constants,
// and a message that spells one says a name that exists.
#include <gtest/gtest.h>

#include <cctype>
#include <set>
#include <string>
#include <vector>

#include "tests/architecture/sources.h"
#include "tests/support/pattern.h"

namespace {

constexpr const char* kHeader = "include/lockstep/core/environment.h";

// A character of code at a time: where it leads, and what it adds to the literals.
class LiteralScanner {
 public:
  explicit LiteralScanner(const std::string& code) : code_(code) {}

  std::vector<std::string> literals() {
    while (at_ < code_.size()) {
      if (starts_with("//"))
        at_ = code_.find('\n', at_);
      else if (starts_with("/*"))
        at_ = code_.find("*/", at_ + 2);
      else if (starts_with("R\""))
        take_raw();
      else if (code_[at_] == '"')
        take_quoted('"');
      else if (code_[at_] == '\'' && (at_ == 0 || std::isalnum(static_cast<unsigned char>(code_[at_ - 1])) == 0))
        take_quoted('\'');  // not the one between digits
      else
        ++at_;
    }
    return std::move(found_);
  }

 private:
  bool starts_with(const char* what) const { return code_.compare(at_, std::string(what).size(), what) == 0; }
  void take_quoted(char quote) {
    std::string literal;
    for (++at_; at_ < code_.size() && code_[at_] != quote; ++at_) {
      if (code_[at_] == '\\') ++at_;
      literal += code_[at_];
    }
    ++at_;
    if (quote == '"') found_.push_back(literal);
  }
  void take_raw() {
    const std::size_t open = code_.find('(', at_);
    const std::string end = ")" + code_.substr(at_ + 2, open - at_ - 2) + "\"";
    at_ = code_.find(end, open);
    found_.push_back(code_.substr(open + 1, at_ - open - 1));
    at_ += end.size();
  }

  const std::string& code_;
  std::size_t at_ = 0;
  std::vector<std::string> found_;
};

std::set<std::string> names_in(const std::string& header) {
  std::set<std::string> names;
  for (const std::string& literal : LiteralScanner(header).literals()) names.insert(literal);
  return names;
}

// Sentences about literals that should be constants, and about names that do not exist; empty when all is well.
std::vector<std::string> faults_of(const std::string& path, const std::string& code,
                                   const std::set<std::string>& names) {
  std::vector<std::string> faults;
  for (const std::string& literal : LiteralScanner(code).literals()) {
    if (literal.find("LOCKSTEP_") == std::string::npos)
      continue;  // most: a regular expression takes a thousand times as long
    if (lockstep::testing::matches(literal, "LOCKSTEP_[A-Z0-9_]*"))
      faults.push_back(path + ": \"" + literal + "\" belongs into " + kHeader);
    else
      for (const auto& mention : lockstep::testing::find_matches(literal, "LOCKSTEP_[A-Z0-9_]+"))
        if (names.count(mention[0]) == 0)
          faults.push_back(path + ": a message says " + mention[0] + ", which " + kHeader + " has not");
  }
  return faults;
}

TEST(EnvironmentNames, StandInOneHeader) {
  std::set<std::string> names;
  visit_sources({"include/lockstep/core"}, [&](const std::string& path, const std::string& code) {
    if (path == kHeader) names = names_in(code);
  });
  EXPECT_GT(names.size(), 20u);
  const int files = visit_sources({"include", "src", "kernels", "launcher", "bench", "examples"},
                                  [&](const std::string& path, const std::string& code) {
                                    if (path == kHeader) return;
                                    for (const std::string& fault : faults_of(path, code, names))
                                      ADD_FAILURE() << fault;
                                  });
  EXPECT_GT(files, 100);
}

TEST(EnvironmentNames, AFaultIsNoticed) {
  const std::set<std::string> names = {"LOCKSTEP_TOKEN"};
  const auto number_of_faults = [&](const char* code) { return faults_of("x.cpp", code, names).size(); };
  EXPECT_EQ(number_of_faults("text(\"LOCKSTEP_TOKEN\")"), 1u);
  EXPECT_EQ(number_of_faults("count = 1'000; text(\"LOCKSTEP_TOKEN\")"), 1u);
  EXPECT_EQ(number_of_faults("fail(\"set LOCKSTEP_TOKENS\")"), 1u);
  EXPECT_EQ(number_of_faults("c = '\"'; fail(R\"(set\nLOCKSTEP_TOKENS)\")"), 1u);
  EXPECT_EQ(number_of_faults("fail(\"set \\\"LOCKSTEP_TOKEN\\\"\"); // \"LOCKSTEP_TOKENS\""), 0u);
  EXPECT_EQ(number_of_faults("print(\"lockrun \" LOCKSTEP_VERSION \"!\"); /* \"LOCKSTEP_TOKENS\" */"), 0u);
}

}  // namespace

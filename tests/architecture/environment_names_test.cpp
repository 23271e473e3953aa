// The names of Lockstep's environment variables are only spelled in core/environment.h; other code uses its constants,
// and the names in messages exist.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tests/architecture/source_text.h"
#include "tests/architecture/sources.h"
#include "tests/support/pattern.h"

namespace {

constexpr const char* kHeader = "include/lockstep/core/environment.h";

std::set<std::string> names_in(const std::string& header) {
  std::set<std::string> names;
  const SourceText text(header);
  for (const auto& literal : text.literals()) names.insert(literal.text);
  return names;
}

// Sentences about literals that should be constants, and about names that do not exist; empty when all is well.
std::vector<std::string> faults_of(const std::string& path, const std::string& code,
                                   const std::set<std::string>& names) {
  std::vector<std::string> faults;
  const SourceText text(code);
  for (const auto& [line, literal] : text.literals()) {
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

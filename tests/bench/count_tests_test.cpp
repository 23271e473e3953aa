// scripts/count-tests with logs as Meson writes them, and with a Meson that runs nothing: what counts, what is tried
// again, what is said.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CountTests : public ::testing::Test {
 protected:
  CountTests() {
    std::filesystem::create_directories(build_ + "/meson-logs");
    // Notes what it was asked for, and says that it went as $MESON_SAYS.
    std::ofstream(folder_ / "meson") << "#!/bin/sh\necho \"asked: $*\"\nexit \"$MESON_SAYS\"\n";
    std::filesystem::permissions(folder_ / "meson", std::filesystem::perms::owner_all);
  }
  ~CountTests() override { std::filesystem::remove_all(folder_); }

  // A run of one program with the cases Rings.Good, Rings.Skips and Rings.Bad.
  void log_run(const std::string& result, int exit_code, const std::string& output, bool bad_case = true) {
    std::ofstream(build_ + "/meson-logs/testlog.json")
        << R"({"name": "lockstep:once / rings, tcp", "result": ")" << result << R"(", "returncode": )" << exit_code
        << R"(, "stdout": ")" << output << "\"}\n";
    std::ofstream(build_ + "/meson-logs/testlog.junit.xml")
        << R"(<testsuites><testsuite name="lockstep.lockstep:once / rings, tcp.Rings"><testcase name="Good"/>)"
        << R"(<testcase name="Skips"><skipped message="rings_test.cpp:9&#10;no wire"/></testcase><testcase name="Bad">)"
        << (bad_case ? R"(<failure message="was 3&#10;wanted 4"/>)" : "") << "</testcase></testsuite></testsuites>";
  }

  struct Told {
    int exit_code;
    std::string output;
  };
  Told count(std::vector<std::string> arguments, const char* meson_says = "0") {
    arguments.insert(arguments.begin(), SCRIPTS "/count-tests");
    arguments.push_back(build_);
    Child child(arguments, ChildOptions{.environment = {{"PATH", folder_.string() + ":" + ::getenv("PATH")},
                                                        {"MESON_SAYS", meson_says}}});
    const int exit_code = child.wait(60s);
    return {exit_code, child.output() + child.errors()};
  }

 private:
  const std::filesystem::path folder_ = ::testing::TempDir() + "count-tests-" + std::to_string(::getpid());
  const std::string build_ = folder_.string() + "/build";
};

TEST_F(CountTests, FailuresStandAtTheEndWithTheirReasons) {
  log_run("FAIL", 1, "");
  const Told told = count({});
  EXPECT_EQ(told.exit_code, 1);
  EXPECT_THAT(told.output, AllOf(HasSubstr("rings, tcp Rings.Bad: was 3 wanted 4\n1 passed, 1 failed, 1 skipped\n"),
                                 HasSubstr("rings, tcp Rings.Skips: no wire\n")));
}

TEST_F(CountTests, ACaseThatPassesAloneIsUnsteady) {
  log_run("FAIL", 1, "");
  const Told told = count({"--again"});
  EXPECT_EQ(told.exit_code, 0) << told.output;
  EXPECT_THAT(
      told.output,
      AllOf(HasSubstr("--num-processes 1"),
            HasSubstr("rings, tcp --timeout-multiplier 3 --test-args=--gtest_filter=Rings.Bad\n"),
            HasSubstr(
                "rings, tcp Rings.Bad failed once and passed alone: was 3 wanted 4\n2 passed, 0 failed, 1 skipped\n")));
  EXPECT_THAT(count({}).output, HasSubstr("failed once and passed alone")) << "a later count knows it";
}

TEST_F(CountTests, ACaseThatFailsAloneHasFailed) {
  log_run("FAIL", 1, "");
  const Told told = count({"--again"}, "1");
  EXPECT_EQ(told.exit_code, 1) << told.output;
  EXPECT_THAT(told.output, HasSubstr("1 passed, 1 failed, 1 skipped\n"));
}

TEST_F(CountTests, ReportsOfSanitizersAndCrashesAreNotTriedAgain) {
  struct {
    const char* result;
    int exit_code;
    const char* output;
    bool bad_case;
  } const runs[] = {{"FAIL", 1, "ERROR: AddressSanitizer: heap-use-after-free", true},
                    {"FAIL", 1, "a.cpp:3: runtime error: overflow", true},
                    {"FAIL", 66, "", true},
                    {"FAIL", -6, "", false},
                    {"FAIL", 66, "WARNING: ThreadSanitizer: data race", false},
                    {"TIMEOUT", -15, "", false}};
  for (const auto& run : runs) {
    log_run(run.result, run.exit_code, run.output, run.bad_case);
    const Told told = count({"--again"});
    EXPECT_EQ(told.exit_code, 1) << told.output;
    EXPECT_THAT(told.output, AllOf(Not(HasSubstr("asked:")), HasSubstr(" 1 failed, 1 skipped\n")))
        << run.result << run.exit_code;
  }
}

TEST_F(CountTests, WhatDidNotRunHasFailed) {
  const Told told = count({});
  EXPECT_EQ(told.exit_code, 1);
  EXPECT_THAT(told.output, HasSubstr("0 passed, 1 failed, 0 skipped\n"));
}

}  // namespace
}  // namespace lockstep::testing

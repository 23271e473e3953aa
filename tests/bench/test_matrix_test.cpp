// scripts/test-matrix with machines that are none: what its last lines say and how it ends.
#include <gmock/gmock.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>

#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class TestMatrix : public ::testing::Test {
 protected:
  ~TestMatrix() override { std::filesystem::remove_all(folder_); }
  // The script with these stages on the machine that `command` makes.
  std::unique_ptr<Child> run(const std::string& command, std::vector<std::string> stages) {
    stages.insert(stages.begin(), SCRIPTS "/test-matrix");
    const std::string data = folder_ / "data";  // there is none
    return std::make_unique<Child>(
        stages, ChildOptions{
                    .environment = {{"FRESH_MACHINE", command}, {"BUILD", folder_.string()}, {"LOCKSTEP_DATA", data}}});
  }
  std::string log_of(const std::string& stage) const {
    std::ostringstream text;
    text << std::ifstream(folder_ / "matrix" / (stage + ".log")).rdbuf();
    return text.str();
  }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  const std::filesystem::path folder_ = ::testing::TempDir() + "test-matrix-" + std::to_string(::getpid());
};

TEST_F(TestMatrix, EndsWithALineForEachStage) {
  const auto good = run("echo", {"debian13-gcc14", "debian13-clang19"});
  EXPECT_EQ(good->wait(60s), 0) << good->output() << good->errors();
  EXPECT_THAT(good->output(), ContainsRegex("\nPASS debian13-gcc14 [0-9]+\nPASS debian13-clang19 [0-9]+\n$"));
  EXPECT_THAT(log_of("debian13-gcc14"), ContainsRegex("-s trixie .*CXX=g\\+\\+-14 scripts/test -Dwerror=true"));
  EXPECT_THAT(log_of("debian13-clang19"), ContainsRegex("scripts/dependencies clang-19 && CXX=clang\\+\\+-19 "));
}

TEST_F(TestMatrix, AFailureIsShownAndIsTheExitCode) {
  const auto bad = run("false", {"debian13-gcc14", "debian13-clang19"});
  EXPECT_EQ(bad->wait(60s), 1) << bad->output() << bad->errors();
  EXPECT_THAT(bad->output(),
              ContainsRegex("\nFAIL debian13-gcc14 [0-9]+ see .*debian13-gcc14.log\nFAIL debian13-clang19 "));
}

TEST_F(TestMatrix, WithoutAMachineAStageIsSkippedWithTheReason) {
  const auto none = run("/nonexistent/machine", {"debian13-gcc14"});
  EXPECT_EQ(none->wait(60s), 0) << none->output() << none->errors();
  EXPECT_THAT(none->output(),
              ContainsRegex("\nSKIP debian13-gcc14 [0-9]+ there is no /nonexistent/machine: FRESH_MACHINE names"));
}

TEST_F(TestMatrix, WithoutItsDataAnExampleIsSkippedWithTheRemedy) {
  const auto none = run("echo", {"own_dataset", "fashion_mnist", "gpt", "resnet"});
  EXPECT_EQ(none->wait(60s), 0) << none->output() << none->errors();
  for (const char* const skipped :
       {"own_dataset [0-9]+ .*/data has no reuters: scripts/fetch-data reuters downloads it", "fashion_mnist ",
        "gpt [0-9]+ .* no tinyshakespeare: ", "resnet [0-9]+ .* no cifar10: "})
    EXPECT_THAT(none->output(), ContainsRegex(std::string("\nSKIP ") + skipped));
}

TEST_F(TestMatrix, WhenItIsStoppedNothingIsLeft) {
  const std::string machine = folder() / "machine";
  std::filesystem::create_directories(folder());
  std::ofstream(machine) << "#!/bin/bash\ntouch " << machine << ".began\nsleep 300\n";
  std::filesystem::permissions(machine, std::filesystem::perms::owner_all);
  const auto matrix = run(machine, {"debian13-gcc14"});
  for (int i = 0; i < 600 && !std::filesystem::exists(machine + ".began"); ++i) std::this_thread::sleep_for(100ms);
  matrix->signal(SIGTERM);
  EXPECT_EQ(matrix->wait(60s), 130) << matrix->output() << matrix->errors();
  EXPECT_TRUE(matrix->nothing_left(60s));
}

TEST_F(TestMatrix, KnowsItsStages) {
  const auto wrong = run("echo", {"everything"});
  EXPECT_EQ(wrong->wait(60s), 2);
  EXPECT_THAT(wrong->errors(), HasSubstr("no stage everything: there are debian13-gcc14 "));
}

}  // namespace
}  // namespace lockstep::testing

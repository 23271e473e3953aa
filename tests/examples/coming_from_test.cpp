// The programs of docs/coming-from-pytorch.md and docs/coming-from-tensorflow.md learn what they promise, and resume.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

class ComingFrom : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // The accuracy that the program prints.
  double run(std::vector<std::string> command) {
    command.insert(command.begin(), {"env", "-C", folder_});
    Child example(command);
    EXPECT_EQ(example.wait(std::chrono::seconds(60)), 0) << example.errors();
    const std::string output = example.output(), words = "accuracy on 256 points: ";
    const std::size_t at = output.find(words);
    EXPECT_NE(at, std::string::npos) << output;
    return at == std::string::npos ? 0 : std::stod(output.substr(at + words.size()));
  }
  const std::string folder_ = ::testing::TempDir() + "coming_from-" + std::to_string(::getpid());
};

TEST_P(ComingFrom, LearnsTheCircleAndResumes) {
  const double first = run({LOCKRUN, "-n", "2", GetParam()});
  EXPECT_GT(first, 0.9);
  EXPECT_EQ(run({LOCKRUN, "-n", "2", GetParam()}), first) << "a run after the last epoch only evaluates";
}

TEST_P(ComingFrom, RunsAlone) { EXPECT_GT(run({GetParam()}), 0.9); }

INSTANTIATE_TEST_SUITE_P(Examples, ComingFrom, ::testing::Values(COMING_FROM_PYTORCH, COMING_FROM_TENSORFLOW),
                         [](const auto& tested) { return tested.index == 0 ? "PyTorch" : "TensorFlow"; });

}  // namespace
}  // namespace lockstep::testing

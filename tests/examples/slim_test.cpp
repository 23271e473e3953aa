// examples/slim: one process with several clones, a job with parameter servers, and both after a restart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/faults/child.h"
#include "tests/train/event_records.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class SlimExample : public ::testing::Test {
 protected:
  void TearDown() override { fs::remove_all(folder_); }

  std::string run(std::vector<std::string> words, const std::string& logdir, const std::string& steps,
                  int exit_code = 0) const {
    words.insert(words.end(), {"--logdir", (folder_ / logdir).string(), "--max_number_of_steps=" + steps});
    Child child(words, {.environment = {{"OMP_NUM_THREADS", "1"}}, .unset = {"LOCKSTEP_LOGICAL_DEVICES"}});
    EXPECT_EQ(child.wait(std::chrono::seconds(60)), exit_code) << child.output() << child.errors();
    return child.output() + child.errors();
  }
  std::string model(const std::string& logdir, const std::string& step) const {
    return bytes_of_file(folder_ / logdir / "checkpoints" / step / "model.safetensors");
  }
  std::string optimizer(const std::string& logdir, const std::string& step) const {
    return bytes_of_file(folder_ / logdir / "checkpoints" / step / "optimizer.safetensors");
  }

  // One server, two workers with two clones each.
  const std::vector<std::string> job_ = {LOCKRUN, "--ps",         "1", "--workers",      "2", "--no-prefix",
                                         SLIM,    "--num_clones", "2", "--num_ps_tasks", "1", "--num_replicas=2"};
  const fs::path folder_ = fs::path(::testing::TempDir()) / ("slim-" + std::to_string(::getpid()));
};

TEST_F(SlimExample, ClonesOfOneProcessLearnAndContinue) {
  const std::vector<std::string> program = {SLIM, "--num_clones", "2"};
  EXPECT_THAT(run(program, "whole", "300"), HasSubstr("slim: step 300, total loss 0."));
  run(program, "parts", "130");
  EXPECT_THAT(run(program, "parts", "300"), HasSubstr("goes on from step 130"));
  EXPECT_EQ(model("parts", "step-00000300"), model("whole", "step-00000300"));
  EXPECT_THAT(run(program, "parts", "300"), HasSubstr("nothing to do"));
}

TEST_F(SlimExample, WorkersWithClonesLearnOverAServerAndContinueWithItsState) {
  EXPECT_THAT(run(job_, "whole", "300"), HasSubstr("slim: step 300, total loss 0."));
  run(job_, "parts", "130");
  EXPECT_THAT(run(job_, "parts", "300"), HasSubstr("goes on from step 130"));
  EXPECT_EQ(model("parts", "step-00000300"), model("whole", "step-00000300"));
  EXPECT_EQ(optimizer("parts", "step-00000300"), optimizer("whole", "step-00000300")) << "the server's momentum";
  EXPECT_NE(model("parts", "step-00000130"), model("whole", "step-00000300"));
  EXPECT_THAT(run(job_, "parts", "300"), HasSubstr("nothing to do"));
}

TEST_F(SlimExample, AJobOfAnotherSizeIsRefusedOnAllRanks) {
  std::vector<std::string> three = job_;
  three.back() = "--num_replicas=3";
  EXPECT_THAT(
      run(three, "other", "10", 2),
      HasSubstr("num_replicas 3 and num_ps_tasks 1 need 4 processes, the job has 3: lockrun --ps 1 --workers 3"));
  EXPECT_FALSE(fs::exists(folder_ / "other"));
}

}  // namespace
}  // namespace lockstep::testing

// Rank 0 of a real job is killed at every point of saving a checkpoint: the previous or the new one loads, and the next save
// clears up. (What a loss of power would take is another matter: the page cache outlives a process.)
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/faults/child.h"
#include "tests/train/checkpoint_trainee.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr int kKilled = 128 + 9;

class CheckpointKill : public ::testing::Test {
 protected:
  CheckpointKill() {
    std::string pattern = ::testing::TempDir() + "lockstep-kill-XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~CheckpointKill() override { fs::remove_all(folder_); }

  // With the checkpoint of step 1 in the folder, saves that of step 2 and is killed. The job's exit code.
  int save_and_kill(int at) const {
    fs::remove_all(folder_);
    CheckpointTrainee before(1);
    save_checkpoint(folder_, before.parts(1));
    testing::Child job({LOCKSTEP_LOCKRUN, "-n", "2", LOCKSTEP_CHECKPOINT_RANK, folder_, std::to_string(at)});
    const int exit_code = job.wait(std::chrono::seconds(60));
    EXPECT_TRUE(exit_code == 0 || exit_code == kKilled) << job.errors();
    return exit_code;
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

  std::string folder_;
};

TEST_F(CheckpointKill, AtAnyPointThePreviousOrTheNewOneLoads) {
  const std::string old_one = CheckpointTrainee(1).hash(), new_one = CheckpointTrainee(2).hash();
  int kills = 0, previous = 0, unfinished = 0;
  for (int at = 1; save_and_kill(at) == kKilled; ++at) {
    SCOPED_TRACE("killed in call " + std::to_string(at));
    ASSERT_LT(at, 200) << "saving does not come to its end";
    const std::vector<std::string> left = names();
    unfinished += std::any_of(left.begin(), left.end(), [](const std::string& name) { return name.rfind("writing-", 0) == 0; });
    CheckpointTrainee loaded(9);
    const auto state = load_checkpoint(folder_, loaded.parts());
    ASSERT_TRUE(state.has_value());
    ASSERT_TRUE(state->step == 1 || state->step == 2) << state->step;
    EXPECT_EQ(loaded.hash(), state->step == 1 ? old_one : new_one);
    if (state->step == 1) {
      EXPECT_EQ(previous, kills) << "once the new one is there it stays";
      ++previous;
    }
    ++kills;
    CheckpointParts next = loaded.parts(3);
    next.keep = 1;
    save_checkpoint(folder_, next);
    EXPECT_EQ(names(), (std::vector<std::string>{"latest", "step-00000003"})) << "what the killed one left is gone";
  }
  EXPECT_EQ(names(), (std::vector<std::string>{"latest", "step-00000002"})) << "nobody was killed at last";
  EXPECT_GE(kills, 20);
  EXPECT_GE(unfinished, 10) << "of the kills, those amid the files";
  EXPECT_TRUE(previous > 0 && previous < kills) << previous << " of " << kills << " found the previous one";
}

}  // namespace
}  // namespace lockstep

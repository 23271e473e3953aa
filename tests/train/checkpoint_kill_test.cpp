// Rank 0 of a real job is killed at every point of saving a checkpoint: the previous or the new one loads, and the next
// save removes what is unfinished. (A loss of power is not tested: the page cache outlives a process.)
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "src/train/checkpoint/folder/folder_lock.h"
#include "src/train/files/durable_file.h"
#include "tests/faults/child.h"
#include "tests/train/checkpoint_trainee.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

constexpr int kKilled = 128 + 9;

struct Kills {
  int all = 0;
  int previous = 0;    // kills after which the previous checkpoint loads
  int unfinished = 0;  // kills that left something unfinished
};

class CheckpointKill : public ::testing::Test {
 protected:
  CheckpointKill() {
    CheckpointTrainee before(1);
    save_checkpoint(first_, before.parts(1));
  }
  ~CheckpointKill() override {
    fs::remove_all(folder_);
    fs::remove_all(first_);
  }

  // Saves step 2 in a folder that has the checkpoint of step 1, and is killed. Returns the job's exit code.
  int save_and_kill(int at, const std::vector<std::string>& how = {}) const {
    fs::remove_all(folder_);
    fs::copy(
        first_, folder_,
        fs::copy_options::recursive);  // a copy, because this process keeps the lock of the folder that it saved in
    std::vector<std::string> command = {LOCKSTEP_LOCKRUN, "--no-fold",       "-n", "2", LOCKSTEP_CHECKPOINT_RANK,
                                        folder_,          std::to_string(at)};
    command.insert(command.end(), how.begin(), how.end());
    testing::Child job(command);
    const int exit_code = job.wait(std::chrono::seconds(60));
    EXPECT_TRUE(exit_code == 0 || exit_code == kKilled) << job.errors();
    return exit_code;
  }

  Kills kill_at_every_point(const std::vector<std::string>& how, int least_kills = 20);

  bool has_unfinished() const {
    const std::vector<std::string> left = names();
    return std::any_of(left.begin(), left.end(),
                       [](const std::string& name) { return name.rfind("writing-", 0) == 0; });
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_))
      if (const std::string name = entry.path().filename().string(); name != FolderLock::kFile) names.push_back(name);
    std::sort(names.begin(), names.end());
    return names;
  }

  static std::string new_folder() {
    std::string pattern = ::testing::TempDir() + "lockstep-kill-XXXXXX";
    return mkdtemp(pattern.data());
  }

  const std::string folder_ = new_folder();
  const std::string first_ = folder_ + "-first";
};

// Kills at each point in turn, and checks what must hold on every file system.
Kills CheckpointKill::kill_at_every_point(const std::vector<std::string>& how, int least_kills) {
  const std::string old_one = CheckpointTrainee(1).hash(), new_one = CheckpointTrainee(2).hash();
  Kills kills;
  for (int at = 1; save_and_kill(at, how) == kKilled; ++at) {
    SCOPED_TRACE("killed in call " + std::to_string(at));
    if (at >= 200) throw std::runtime_error("saving does not end");
    kills.unfinished += has_unfinished() ? 1 : 0;
    const std::vector<std::string> left = names();
    CheckpointTrainee loaded(9);
    const CheckpointState state = resume_checkpoint(folder_, loaded.parts());
    EXPECT_TRUE(state.step == 1 || state.step == 2) << state.step;
    EXPECT_EQ(loaded.hash(), state.step == 1 ? old_one : new_one);
    EXPECT_EQ(names(), left) << "a load changes nothing";
    if (state.step == 1) {
      EXPECT_EQ(kills.previous, kills.all) << "once the new checkpoint is in place, it stays";
      ++kills.previous;
    }
    ++kills.all;
    CheckpointParts next = loaded.parts(3);
    next.keep = 1;
    save_checkpoint(folder_, next);
    EXPECT_EQ(names(), (std::vector<std::string>{"latest", "step-00000003"})) << "the unfinished checkpoint is removed";
  }
  EXPECT_EQ(names(), (std::vector<std::string>{"latest", "step-00000002"})) << "the last save was not killed";
  EXPECT_GE(kills.all, least_kills);
  EXPECT_GT(kills.previous, 0) << "of " << kills.all;
  return kills;
}

TEST_F(CheckpointKill, AtAnyPointThePreviousOrTheNewCheckpointLoads) {
  const Kills kills = kill_at_every_point({"named"});
  EXPECT_GE(kills.unfinished, 10) << "kills while files were written";
  EXPECT_LT(kills.previous, kills.all);
}

TEST_F(CheckpointKill, OfARankWithSlicesThePreviousOrTheNewCheckpointLoads) {
  const Kills first = kill_at_every_point({"sliced", "named"});
  EXPECT_LT(first.previous, first.all);
  const Kills second = kill_at_every_point({"sliced", "second"}, 3);
  EXPECT_EQ(second.previous, second.all) << "without its slices there is no new checkpoint";
}

// The training's thread has ended its work meanwhile, and waits in the end of main().
TEST_F(CheckpointKill, WhileAThreadSavesThePreviousOrTheNewCheckpointLoads) {
  const Kills first = kill_at_every_point({"sliced", "named", "background"});
  EXPECT_LT(first.previous, first.all);
  const Kills second = kill_at_every_point({"sliced", "second", "background"}, 3);
  EXPECT_EQ(second.previous, second.all) << "without its slices there is no new checkpoint";
}

TEST_F(CheckpointKill, TheProgramsEndWaitsForTheThread) {
  for (const char* end : {"background", "exit"})
    for (const char* state : {"sliced", "whole"}) {
      EXPECT_EQ(save_and_kill(0, {"background", end, state}), 0);
      EXPECT_EQ(names(), (std::vector<std::string>{"latest", "step-00000002"})) << end << ", " << state;
    }
}

// Two things may still be left: the temporary folder, until it is renamed, and `writing-latest`, from its naming to its
// renaming.
TEST_F(CheckpointKill, WhileDataIsWrittenLeavesNothingIfFilesNeedNoName) {
  if (!has_nameless_files(folder_ + "/try"))
    GTEST_SKIP() << "the file system of " << folder_ << " has no files without a name";
  const Kills kills = kill_at_every_point({});
  EXPECT_LE(kills.unfinished, 14) << "of " << kills.all;
}

}  // namespace
}  // namespace lockstep::train

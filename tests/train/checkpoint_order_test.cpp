// The order of a folder's checkpoints, by which the old ones are removed, and the steps that they may have.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "tests/ddp/ranks.h"
#include "tests/train/checkpoint_folder.h"
#include "tests/train/checkpoint_trainee.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

using Trainee = CheckpointTrainee;
using testing::Folder;

// Times of files are no order: a copy changes them.
TEST(CheckpointOrder, TheNewestStayWhateverTheTimesOfTheirFiles) {
  const Folder folder;
  Trainee run(1);
  const auto save = [&](std::int64_t step, int keep) {
    CheckpointParts parts = run.parts(step);
    parts.keep = keep;
    return save_checkpoint(folder.path(), parts);
  };
  const auto touch = [](const std::string& path, int hours) {
    fs::last_write_time(path, fs::file_time_type::clock::now() + std::chrono::hours(hours));
  };
  const std::string one = save(1, 9), two = save(2, 9);
  touch(one, 1), touch(two, -1);
  fs::copy(one, folder.path() + "/step-00000001.1", fs::copy_options::recursive);
  save(3, 2);
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"latest", "step-00000002", "step-00000003"}));
  // After a run has gone back to an earlier step, the order is that of the saves, not of the steps.
  const std::string back = save(1, 2);
  touch(back, -2);
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"latest", "step-00000001", "step-00000003"}));
  save(2, 2);
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"latest", "step-00000001", "step-00000002"}));
}

// Checkpoints of versions without numbers of saves come first, in the order of their steps.
TEST(CheckpointOrder, OfAnOlderVersionLoadsAndCountsAsOlder) {
  const Folder newer, folder;
  Trainee run(1);
  std::vector<std::string> all;
  for (const int step : {10, 9}) all.push_back(save_checkpoint(newer.path(), run.parts(step)));
  for (const std::string& written : all) {
    nlohmann::json manifest = testing::read_json(written + "/manifest.json");
    for (const char* key : {"step", "sequence", "lineage", "job"}) EXPECT_EQ(manifest.erase(key), 1u) << key;
    testing::put_right(newer, written, manifest);
  }
  fs::copy(newer.path(), folder.path(), fs::copy_options::recursive);
  EXPECT_EQ(load_checkpoint(folder.path(), run.parts())->step, 9);
  save_checkpoint(folder.path(), run.parts(3));
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"latest", "step-00000003", "step-00000010"}));
}

TEST(CheckpointOrder, ANegativeStepIsRefusedOnAllRanks) {
  const Folder folder;
  for (const int odd : {0, 1}) {
    const auto failures = testing::run_ranks(2, "threads", [&](auto group) {
      Trainee run(1);
      CheckpointParts parts = run.parts(group->rank() == odd ? -1 : 1);
      parts.group = group;
      EXPECT_THROW(save_checkpoint(folder.path(), parts), InvalidArgument);
      save_checkpoint(folder.path(), parts);
    });
    for (const std::string& failure : failures)
      EXPECT_NE(failure.find("save_checkpoint: rank " + std::to_string(odd) + ": step -1 is negative"),
                std::string::npos)
          << failure;
  }
  Trainee run(1);
  CheckpointParts parts = run.parts();
  parts.epoch = -2;
  EXPECT_THROW(save_checkpoint(folder.path(), parts), InvalidArgument);
  parts.epoch = 0, parts.keep = 0;
  EXPECT_THROW(save_checkpoint(folder.path(), parts), InvalidArgument);
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace
}  // namespace lockstep::train

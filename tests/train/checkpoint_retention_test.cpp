// Which checkpoints a save removes: by their number and by their age, whatever the clock did.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/train/checkpoint.h"
#include "src/train/checkpoint/folder/retention.h"
#include "tests/train/checkpoint_folder.h"
#include "tests/train/checkpoint_trainee.h"

namespace lockstep::train {
namespace {

using checkpoint::KeptCheckpoint;
using checkpoint::names_to_remove;
using std::chrono::hours;
using testing::Folder;
using Names = std::vector<std::string>;

constexpr std::int64_t kHour = 3600, kNow = 1'000'000 * kHour;

// Checkpoints a, b, c, ... of these ages, oldest first.
std::vector<KeptCheckpoint> of_ages(const std::vector<std::int64_t>& ages_in_hours) {
  std::vector<KeptCheckpoint> all;
  for (const std::int64_t age : ages_in_hours) {
    const auto number = static_cast<std::int64_t>(all.size());
    all.push_back({std::string(1, static_cast<char>('a' + number)), number + 1, number, kNow - age * kHour});
  }
  return all;
}

TEST(CheckpointRetention, TheNewestAndTheYoungStay) {
  const auto all = of_ages({5, 4, 3, 2, 1});
  EXPECT_EQ(names_to_remove(all, kNow, {.keep = 2}), (Names{"d", "c", "b", "a"}));
  EXPECT_EQ(names_to_remove(all, kNow, {.keep = 4}), (Names{"b", "a"}));
  EXPECT_EQ(names_to_remove(all, kNow, {.keep = 1, .keep_for = hours(3)}), (Names{"c", "b", "a"}));
  EXPECT_EQ(names_to_remove(all, kNow, {.keep = 5, .keep_for = hours(3)}), (Names{"a"}));
  EXPECT_EQ(names_to_remove(all, kNow, {.keep = 1, .keep_for = hours(9)}), Names());
}

TEST(CheckpointRetention, AClockThatJumpsKeepsNothingForEver) {
  // c was saved by a clock that was ahead: it is as old as d.
  EXPECT_EQ(names_to_remove(of_ages({9, 8, -5000, 7, 1}), kNow, {.keep = 1, .keep_for = hours(3)}),
            (Names{"d", "c", "b", "a"}));
  EXPECT_EQ(names_to_remove(of_ages({9, 8, -5000, 2, 1}), kNow, {.keep = 1, .keep_for = hours(3)}), (Names{"b", "a"}));
  // The clock went back before d: what was saved before counts from then on.
  EXPECT_EQ(names_to_remove(of_ages({-5000, -4000, -3000, 2, 1}), kNow, {.keep = 1, .keep_for = hours(3)}), Names());
  EXPECT_EQ(names_to_remove(of_ages({-5000, -4000, -3000, 4, 3}), kNow, {.keep = 1, .keep_for = hours(3)}),
            (Names{"e", "d", "c", "b", "a"}));
  // It went back before the new one.
  EXPECT_EQ(names_to_remove(of_ages({-3, -2, -1}), kNow, {.keep = 1, .keep_for = hours(3)}), Names());
  EXPECT_EQ(names_to_remove(of_ages({-3, -2, -1}), kNow, {.keep = 2}), (Names{"b", "a"}));
}

TEST(CheckpointRetention, WithoutATimeOrIntactFilesOthersStay) {
  auto all = of_ages({3, 2, 1});
  all[1].saved_at = 0;  // of an older version
  EXPECT_EQ(names_to_remove(all, kNow, {.keep = 1, .keep_for = hours(4)}), (Names{"b"}));
  EXPECT_EQ(names_to_remove(of_ages({3, 2, 1}), kNow, {.keep = 2, .damaged = {"c"}}), (Names{"a"}));
  EXPECT_EQ(names_to_remove(of_ages({3, 2, 1}), kNow, {.keep = 1, .damaged = {"c"}}), (Names{"c", "b", "a"}));
}

TEST(CheckpointRetention, ASaveGoesByTheManifests) {
  const Folder folder;
  CheckpointTrainee run(1);
  const auto save = [&](std::int64_t step, std::chrono::seconds keep_for) {
    CheckpointParts parts = run.parts(step);
    parts.keep = 1;
    return save_checkpoint(folder.path(), parts, {.keep_for = keep_for});
  };
  const std::string first = save(1, hours(2));
  save(2, hours(2));
  EXPECT_EQ(folder.names(), (Names{"latest", "step-00000001", "step-00000002"}));
  nlohmann::json manifest = testing::read_json(first + "/manifest.json");
  manifest["saved_at"] = manifest["saved_at"].get<std::int64_t>() - 3 * kHour;
  testing::overwrite(first + "/manifest.json", manifest.dump());
  save(3, hours(2));
  EXPECT_EQ(folder.names(), (Names{"latest", "step-00000002", "step-00000003"}));
  save(4, std::chrono::seconds(0));
  EXPECT_EQ(folder.names(), (Names{"latest", "step-00000004"}));
}

}  // namespace
}  // namespace lockstep::train

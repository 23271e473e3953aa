// A checkpoint that is found damaged is skipped with a warning, and the newest intact one of the same training loads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <functional>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/train/checkpoint.h"
#include "tests/ddp/ranks.h"
#include "tests/support/log_lines.h"
#include "tests/support/message_of.h"
#include "tests/train/checkpoint_folder.h"
#include "tests/train/checkpoint_trainee.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::Folder;
using ::testing::HasSubstr;
using testing::LogLines;
using ::testing::Not;
using testing::overwrite;
using Trainee = CheckpointTrainee;

// A folder with the checkpoints of steps 1 to 3, of which 3 is the newest.
class CheckpointFallback : public ::testing::Test {
 protected:
  CheckpointFallback() {
    for (const int step : {1, 2, 3}) {
      run_.net.parameters().front().fill(static_cast<float>(step));
      CheckpointParts parts = run_.parts(step);
      parts.keep = 9;
      written_.push_back(save_checkpoint(folder_.path(), parts));
      hashes_.push_back(run_.hash());
    }
  }

  // The step that loads, with its bits; the warnings are in `warnings_`.
  std::int64_t loaded_step() {
    const LogLines log;
    Trainee run(9);
    const std::int64_t step = resume_checkpoint(folder_.path(), run.parts()).step;
    EXPECT_EQ(run.hash(), hashes_.at(static_cast<std::size_t>(step) - 1));
    warnings_ = log.text();
    return step;
  }
  std::string newest() const { return written_.back(); }
  std::string latest() const { return folder_.path() + "/latest"; }

  const Folder folder_;
  Trainee run_{1};
  std::vector<std::string> written_, hashes_;
  std::string warnings_;
};

TEST_F(CheckpointFallback, EveryDamageOfTheNewestIsNamedAndTheOneBeforeLoads) {
  EXPECT_EQ(loaded_step(), 3);
  EXPECT_EQ(warnings_, "");
  const auto shorten = [](const std::string& path) { fs::resize_file(path, fs::file_size(path) - 1); };
  const auto flip = [](const std::string& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(90);
    const char value = static_cast<char>(file.get() ^ 1);
    file.seekp(90);
    file.put(value);
  };
  const auto remove = [](const std::string& path) { fs::remove(path); };
  const auto break_json = [](const std::string& path) { overwrite(path, "{"); };
  struct Damage {
    const char* file;
    std::function<void(const std::string&)> act;
    const char* text;
  };
  for (const Damage& damage :
       {Damage{"model.safetensors", shorten, "is damaged: it has "},
        Damage{"model.safetensors", flip, "is damaged: its SHA-256 is "},
        Damage{"optimizer.safetensors", remove, "cannot be opened: No such file"},
        Damage{"state.json", flip, "is damaged: its SHA-256 is "}, Damage{"manifest.json", break_json, "is damaged: "},
        Damage{"manifest.json", remove, "cannot be opened: No such file"}}) {
    const std::string kept = folder_.path() + "/kept", path = newest() + "/" + damage.file;
    fs::copy(newest(), kept, fs::copy_options::recursive);
    damage.act(path);
    EXPECT_EQ(loaded_step(), 2) << damage.file << ": " << damage.text;
    EXPECT_THAT(warnings_, AllOf(HasSubstr("resume_checkpoint: " + path + ": " + damage.text),
                                 HasSubstr(": " + written_[1] + " is loaded instead")));
    Trainee run(9);
    EXPECT_THAT(message_of([&] { resume_checkpoint(newest(), run.parts()); }), Not(HasSubstr("nothing was thrown")))
        << "the checkpoint that the caller names is never replaced by another";
    fs::remove_all(newest());
    fs::rename(kept, newest());
  }
  EXPECT_EQ(loaded_step(), 3);
}

TEST_F(CheckpointFallback, WithoutAnIntactLatestTheOrderOfTheSavesCounts) {
  const std::string text = "step-00000003 " + std::string(63, '0');
  for (const std::string& damaged :
       {std::string(), std::string("what"), text, "step-00000009 " + std::string(64, '0') + "\n"}) {
    overwrite(latest(), damaged);
    EXPECT_EQ(loaded_step(), 3) << damaged;
    EXPECT_THAT(warnings_, HasSubstr(": " + newest() + " is loaded instead")) << damaged;
  }
  fs::remove(latest());
  EXPECT_EQ(loaded_step(), 3);
  EXPECT_THAT(warnings_,
              HasSubstr("resume_checkpoint: " + latest() + ": is missing: " + newest() + " is loaded instead"));
  ASSERT_EQ(::mkfifo(latest().c_str(), 0600), 0);
  EXPECT_EQ(loaded_step(), 3);
  EXPECT_THAT(warnings_, HasSubstr(latest() + ": is a FIFO"));
  fs::resize_file(newest() + "/model.safetensors", 10);
  EXPECT_EQ(loaded_step(), 2);
  EXPECT_THAT(warnings_,
              AllOf(HasSubstr(latest() + ": is a FIFO"), HasSubstr(newest() + "/model.safetensors: is damaged")));
}

// Without `latest` nothing knows the hash that the manifest should have.
TEST_F(CheckpointFallback, AManifestThatWouldExhaustTheStackIsPassedOver) {
  fs::remove(latest());
  overwrite(newest() + "/manifest.json",
            R"({"format": )" + std::string(100'000, '[') + std::string(100'000, ']') + "}");
  EXPECT_EQ(loaded_step(), 2);
  EXPECT_THAT(warnings_, HasSubstr(written_[1] + " is loaded instead"));
}

TEST_F(CheckpointFallback, WithoutAnyIntactOneAllDamagesAreListed) {
  for (const std::string& checkpoint : written_) overwrite(checkpoint + "/state.json", "{}");
  Trainee run(9);
  const std::string before = run.hash();
  std::string message = message_of([&] { load_checkpoint(folder_.path(), run.parts()); });
  EXPECT_THAT(message, HasSubstr(folder_.path() + ": no checkpoint there is intact: "));
  for (const std::string& checkpoint : written_)
    EXPECT_THAT(message, HasSubstr(checkpoint + "/state.json: is damaged"));
  EXPECT_EQ(run.hash(), before);
}

TEST_F(CheckpointFallback, AnotherModelOrFormatIsNotSkipped) {
  Trainee wider(2, 4);
  EXPECT_THAT(message_of([&] { load_checkpoint(folder_.path(), wider.parts()); }), HasSubstr("is of another model"));
  testing::forge(folder_, newest(), [](nlohmann::json& state, nlohmann::json&) { state["format"] = 2; });
  Trainee run(9);
  EXPECT_THAT(message_of([&] { load_checkpoint(folder_.path(), run.parts()); }), HasSubstr("has format 2"));
}

TEST_F(CheckpointFallback, ACheckpointOfAnotherTrainingIsNotTaken) {
  nlohmann::json manifest = testing::read_json(written_[1] + "/manifest.json");
  manifest["lineage"] = "another";
  overwrite(written_[1] + "/manifest.json", manifest.dump());
  fs::resize_file(newest() + "/model.safetensors", 10);
  EXPECT_EQ(loaded_step(), 1);
  EXPECT_THAT(warnings_, HasSubstr(written_[1] + ": is of another training"));
}

TEST_F(CheckpointFallback, ASaveAfterItDoesNotCountTheDamagedOne) {
  fs::resize_file(newest() + "/model.safetensors", 10);
  EXPECT_EQ(loaded_step(), 2);
  CheckpointParts parts = run_.parts(4);
  parts.keep = 2;
  save_checkpoint(folder_.path(), parts);
  EXPECT_EQ(folder_.names(), (std::vector<std::string>{"latest", "step-00000002", "step-00000003", "step-00000004"}))
      << "two intact ones stay";
  parts.step = 5;
  save_checkpoint(folder_.path(), parts);
  EXPECT_EQ(folder_.names(), (std::vector<std::string>{"latest", "step-00000004", "step-00000005"}));
}

TEST_F(CheckpointFallback, AllRanksGetTheOneBefore) {
  fs::resize_file(newest() + "/model.safetensors", 10);
  testing::expect_all_well(testing::run_ranks(3, "threads", [&](auto group) {
    Trainee run(9);
    CheckpointParts parts = run.parts();
    parts.group = group;
    const auto state = load_checkpoint(folder_.path(), parts);
    ASSERT_TRUE(state.has_value());
    EXPECT_EQ(state->step, 2);
    EXPECT_EQ(state->folder, written_[1]);
  }));
}

}  // namespace
}  // namespace lockstep::train

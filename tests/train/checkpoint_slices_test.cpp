// Checkpoints of ranks with slices of the optimizer's state: saved on four ranks, loaded on another number, with slices
// or without.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/train/checkpoint.h"
#include "src/train/checkpoint/checkpoint_format.h"
#include "tests/ddp/muon_trainee.h"
#include "tests/ddp/ranks.h"
#include "tests/ddp/zero_trainee.h"
#include "tests/train/checkpoint_folder.h"

namespace lockstep::train {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
namespace fs = std::filesystem;
using testing::expect_all_well;
using testing::Folder;
using testing::run_ranks;
using testing::ZeroTrainee;

constexpr const char* kKind = "adamw";

CheckpointParts parts_of(ZeroTrainee& trainee, const std::shared_ptr<ProcessGroup>& group, std::int64_t step = 3) {
  return {.model = trainee.net, .optimizer = *trainee.optimizer, .step = step, .group = group};
}

// Trains three steps on `ranks` ranks and saves.
void save_on(int ranks, const std::string& folder, bool is_zero) {
  expect_all_well(run_ranks(ranks, "threads", [&](auto group) {
    ZeroTrainee trainee(group, kKind, is_zero);
    for (int step = 0; step < 3; ++step) trainee.run_step(step);
    const std::string written = save_checkpoint(folder, parts_of(trainee, group));
    EXPECT_EQ(written.empty(), group->rank() != 0);
  }));
}

// Loads on `ranks` ranks, trains two more steps, and returns the weights of rank 0. Samples depend on the rank, so that
// only runs on the same number of ranks can be compared.
std::string continue_on(int ranks, const std::string& folder, bool is_zero) {
  std::string bits;
  expect_all_well(run_ranks(ranks, "threads", [&](auto group) {
    ZeroTrainee trainee(group, kKind, is_zero);
    EXPECT_EQ(resume_checkpoint(folder, parts_of(trainee, group)).step, 3);
    for (int step = 3; step < 5; ++step) trainee.run_step(step);
    check_replicas_equal(*group, trainee.net.named_parameters(), "weights");
    if (group->rank() == 0) bits = trainee.bits();
  }));
  return bits;
}

TEST(CheckpointSlices, LoadOnAnyNumberOfRanksWithSlicesOrWithout) {
  const Folder plain, sliced;
  save_on(4, plain.path(), false);
  save_on(4, sliced.path(), true);
  EXPECT_TRUE(fs::exists(sliced.path() + "/step-00000003/optimizer-00004-of-00004.safetensors"));
  EXPECT_FALSE(fs::exists(sliced.path() + "/step-00000003/optimizer.safetensors"));
  for (const int ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(ranks);
    const std::string expected = continue_on(ranks, plain.path(), false);
    EXPECT_EQ(continue_on(ranks, sliced.path(), true), expected);
    if (ranks > 2) continue;
    EXPECT_EQ(continue_on(ranks, sliced.path(), false), expected) << "plain ddp from slices";
    EXPECT_EQ(continue_on(ranks, plain.path(), true), expected) << "slices from plain ddp";
  }
}

// With Muon each matrix has one owner; some of five ranks have none.
TEST(CheckpointSlices, OfWholeMatricesLoadOnAnyNumberOfRanks) {
  const auto parts = [](testing::MuonTrainee& trainee, const std::shared_ptr<ProcessGroup>& group) {
    return CheckpointParts{.model = trainee.net, .optimizer = *trainee.muon, .step = 3, .group = group};
  };
  const auto save = [&](const std::string& folder, bool is_zero) {
    expect_all_well(run_ranks(5, "threads", [&](auto group) {
      testing::MuonTrainee trainee(group, is_zero, false);
      trainee.run(3);
      save_checkpoint(folder, parts(trainee, group));
    }));
  };
  const auto resume = [&](int ranks, const std::string& folder, bool is_zero) {
    std::string bits;
    expect_all_well(run_ranks(ranks, "threads", [&](auto group) {
      testing::MuonTrainee trainee(group, is_zero, false);
      EXPECT_EQ(resume_checkpoint(folder, parts(trainee, group)).step, 3);
      for (int step = 3; step < 5; ++step) trainee.run_step(step);
      if (group->rank() == 0) bits = trainee.bits();
    }));
    return bits;
  };
  const Folder plain, owned;
  save(plain.path(), false);
  save(owned.path(), true);
  EXPECT_TRUE(fs::exists(owned.path() + "/step-00000003/optimizer-00005-of-00005.safetensors"));
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    const std::string expected = resume(ranks, plain.path(), false);
    EXPECT_EQ(resume(ranks, owned.path(), true), expected);
    EXPECT_EQ(resume(ranks, owned.path(), false), expected) << "plain ddp from owned matrices";
    EXPECT_EQ(resume(ranks, plain.path(), true), expected) << "owned matrices from plain ddp";
  }
}

TEST(CheckpointSlices, DamageIsFoundAndNothingChanges) {
  const auto load_failures = [](const Folder& folder) {
    return run_ranks(2, "threads", [&](auto group) {
      ZeroTrainee trainee(group, kKind, true);
      const std::string before = trainee.bits();
      try {
        resume_checkpoint(folder.path(), parts_of(trainee, group));
      } catch (...) {
        EXPECT_EQ(trainee.bits(), before);
        throw;
      }
    });
  };
  const std::string second = "/optimizer-00002-of-00002.safetensors";
  {
    const Folder folder;
    save_on(2, folder.path(), true);
    testing::overwrite(folder.path() + "/step-00000003" + second, "damaged");
    EXPECT_THAT(load_failures(folder), Each(HasSubstr("is damaged")));
  }
  {
    const Folder folder;
    save_on(2, folder.path(), true);
    testing::forge(folder, folder.path() + "/step-00000003",
                   [&](nlohmann::json&, nlohmann::json& files) { files.erase(second.substr(1)); });
    EXPECT_THAT(load_failures(folder),
                Each(HasSubstr("does not list one file of optimizer state for each rank that saved")));
  }
  {
    const Folder folder;
    save_on(2, folder.path(), true);
    const std::string first = folder.path() + "/step-00000003/optimizer-00001-of-00002.safetensors";
    fs::remove(folder.path() + "/step-00000003" + second);
    fs::copy_file(first, folder.path() + "/step-00000003" + second);
    testing::put_right(folder, folder.path() + "/step-00000003",
                       testing::read_json(folder.path() + "/step-00000003/manifest.json"));
    EXPECT_THAT(load_failures(folder), Each(HasSubstr("does not follow the")));
  }
}

TEST(CheckpointSlices, AnErrorOfOneRankIsAnErrorOfAll) {
  const Folder folder;
  const std::string in_the_way = folder.path() + "/file";
  testing::overwrite(in_the_way, "not a folder");
  EXPECT_THAT(run_ranks(2, "threads",
                        [&](auto group) {
                          ZeroTrainee trainee(group, kKind, true);
                          save_checkpoint(in_the_way, parts_of(trainee, group), {.on_error = OnSaveError::kStop});
                        }),
              Each(HasSubstr(in_the_way)));
  EXPECT_THAT(run_ranks(2, "threads",
                        [&](auto group) {
                          ZeroTrainee trainee(group, kKind, true);
                          save_checkpoint(folder.path(), parts_of(trainee, nullptr));
                        }),
              Each(HasSubstr("lies in slices on 2 ranks, and this call has a group of 1: give .group")));
}

TEST(CheckpointSlices, NamesOfFilesAreRecognized) {
  using checkpoint::is_shard_name;
  EXPECT_EQ(checkpoint::shard_name(1, 4), "optimizer-00002-of-00004.safetensors");
  EXPECT_TRUE(is_shard_name("optimizer-00002-of-00004.safetensors"));
  for (const char* other :
       {"optimizer.safetensors", "optimizer-0002-of-00004.safetensors", "optimizer-00002-of-0000x.safetensors",
        "../timizer-00002-of-00004.safetensors", "optimizer-00002-of-00004.safetensorx", ""})
    EXPECT_FALSE(is_shard_name(other)) << other;
}

}  // namespace
}  // namespace lockstep::train

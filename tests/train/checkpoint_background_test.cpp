// Checkpoints that a thread writes while the training goes on: their bits, their order, their errors, their end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/train/checkpoint.h"
#include "tests/ddp/ranks.h"
#include "tests/ddp/zero_trainee.h"
#include "tests/support/log_lines.h"
#include "tests/support/message_of.h"
#include "tests/train/checkpoint_folder.h"
#include "tests/train/checkpoint_trainee.h"
#include "tests/train/disk_faults.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Trainee = CheckpointTrainee;
using testing::DiskCall;
using testing::DiskFault;
using testing::expect_all_well;
using testing::Folder;
using testing::LogLines;
using testing::run_ranks;
using testing::SlowDisk;
using testing::ZeroTrainee;

const SaveOptions kBackground{.background = true}, kStops{.background = true, .on_error = OnSaveError::kStop};

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

void expect_same_files(const std::string& a, const std::string& b) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(a)) {
    const std::string name = entry.path().filename().string();
    if (name == "manifest.json") continue;  // it has the time
    EXPECT_EQ(bytes_of(a + "/" + name), bytes_of(b + "/" + name)) << name;
    ++files;
  }
  EXPECT_GE(files, 3);
}

TEST(CheckpointInBackground, HasTheBitsOfTheCallWhateverTheTrainingChangesMeanwhile) {
  const Folder before, folder;
  Trainee run(1);
  ProgramState program{.text = "as it was", .tensors = {{"mine", Tensor::full({5}, 3)}}};
  CheckpointParts parts = run.parts();
  parts.program = program;
  const std::string expected = save_checkpoint(before.path(), parts);
  {
    const SlowDisk disk(folder.path());
    EXPECT_EQ(save_checkpoint(folder.path(), parts, kBackground), "");
    disk.await_write();
    for (const NamedTensor& entry : run.net.named_parameters()) entry.tensor.fill(0);
    for (const NamedTensor& entry : run.sgd.state()) entry.tensor.fill(0);
    program.text = "changed";
    program.tensors[0].tensor.fill(0);
    run.sampler.advance(4);
    manual_seed(77);
  }
  EXPECT_EQ(wait_for_saves(), folder.path() + "/step-00000007");
  EXPECT_EQ(wait_for_saves(), "") << "it has been reported";
  expect_same_files(expected, folder.path() + "/step-00000007");
}

TEST(CheckpointInBackground, SavesFollowEachOtherAndEachHasItsOwnBits) {
  const Folder folder;
  Trainee run(1);
  std::vector<std::string> hashes;
  for (const int step : {1, 2, 3}) {
    run.net.parameters().front().fill(static_cast<float>(step));
    hashes.push_back(run.hash());
    CheckpointParts parts = run.parts(step);
    parts.keep = 3;
    save_checkpoint(folder.path(), parts, {.background = step != 3});
  }
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"latest", "step-00000001", "step-00000002", "step-00000003"}));
  for (const int step : {1, 2, 3}) {
    Trainee loaded(9);
    resume_checkpoint(folder.path() + "/step-0000000" + std::to_string(step), loaded.parts());
    EXPECT_EQ(loaded.hash(), hashes[static_cast<std::size_t>(step) - 1]) << step;
  }
}

TEST(CheckpointInBackground, ALoadWaitsForIt) {
  const Folder folder;
  Trainee run(1);
  save_checkpoint(folder.path(), run.parts(1));
  std::optional<SlowDisk> disk(folder.path());
  save_checkpoint(folder.path(), run.parts(2), kBackground);
  disk->await_write();
  std::thread end([&] { disk.reset(); });
  EXPECT_EQ(resume_checkpoint(folder.path(), run.parts()).step, 2);
  end.join();
  prepare_checkpoint_folder(folder.path());
}

TEST(CheckpointInBackground, AnErrorIsReportedOnceByTheNextCall) {
  const Folder folder;
  Trainee run(1);
  save_checkpoint(folder.path(), run.parts(1));
  const auto error = AllOf(HasSubstr(folder.path() + "/writing-step-00000002"), HasSubstr("No space left on device"),
                           HasSubstr("(step 2, saved in the background)"));
  {
    const DiskFault full(folder.path(), DiskCall::kWrite, ENOSPC);
    save_checkpoint(folder.path(), run.parts(2), kStops);
    EXPECT_THAT(message_of([] { wait_for_saves(); }), error);
    EXPECT_EQ(wait_for_saves(), "");
    save_checkpoint(folder.path(), run.parts(2), kStops);
    EXPECT_THAT(message_of([&] { save_checkpoint(folder.path(), run.parts(3), kBackground); }), error)
        << "a load, a wait or the next save, whatever its options";
  }
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"latest", "step-00000001"}));
  save_checkpoint(folder.path(), run.parts(4), kBackground);
  EXPECT_EQ(wait_for_saves(), folder.path() + "/step-00000004");
}

TEST(CheckpointInBackground, ByDefaultAnErrorIsAWarningAndTheNextSaveTriesAgain) {
  const Folder folder;
  Trainee run(1);
  save_checkpoint(folder.path(), run.parts(1));
  const LogLines log;
  {
    const DiskFault broken(folder.path(), DiskCall::kSync, EIO);
    save_checkpoint(folder.path(), run.parts(2), kBackground);
    EXPECT_EQ(wait_for_saves(), "");
  }
  EXPECT_THAT(log.text(), AllOf(HasSubstr("step 2 is not saved, and the training goes on: "), HasSubstr(folder.path()),
                                HasSubstr("cannot be synced: Input/output error; the newest checkpoint is " +
                                          folder.path() + "/step-00000001; the next save tries again")));
  save_checkpoint(folder.path(), run.parts(3), kBackground);
  EXPECT_EQ(wait_for_saves(), folder.path() + "/step-00000003");
}

TEST(CheckpointInBackground, AFolderOfAnotherJobIsAlwaysAnError) {
  const Folder folder;
  const FolderLock other(folder.path());
  Trainee run(1);
  save_checkpoint(folder.path(), run.parts(1), kBackground);
  EXPECT_THAT(message_of([] { wait_for_saves(); }), HasSubstr(" is running and writes its checkpoints there"));
}

TEST(CheckpointInBackground, WhatCannotBeWrittenIsRefusedByTheCall) {
  const Folder folder;
  Trainee run(1);
  ProgramState program{.text = "\xff"};
  CheckpointParts parts = run.parts();
  parts.program = program;
  EXPECT_THROW(save_checkpoint(folder.path(), parts, kBackground), InvalidArgument);
  EXPECT_THROW(save_checkpoint(folder.path(), run.parts(), {.keep_for = std::chrono::seconds(-1)}), InvalidArgument);
  EXPECT_TRUE(folder.names().empty());
}

TEST(CheckpointInBackground, ThreadsWithoutAGroupTakeTurns) {
  const Folder folders[3];
  std::vector<std::thread> threads;
  for (const Folder& folder : folders)
    threads.emplace_back([&folder] {
      Trainee run(1);
      for (int step = 1; step <= 8; ++step) save_checkpoint(folder.path(), run.parts(step), kBackground);
    });
  for (std::thread& thread : threads) thread.join();
  wait_for_saves();
  for (const Folder& folder : folders)
    EXPECT_EQ(folder.names(), (std::vector<std::string>{"latest", "step-00000007", "step-00000008"}));
}

// -- several ranks

// Each rank trains, saves, and trains on while the checkpoint is written.
void save_amid_training(const std::string& folder, const std::shared_ptr<ProcessGroup>& group, const SaveOptions& how,
                        bool waits = true) {
  ZeroTrainee trainee(group, "adamw", true);
  for (std::int64_t step = 0; step < 6; ++step) {
    trainee.run_step(static_cast<int>(step));
    if (step % 2 == 1)
      save_checkpoint(folder, {.model = trainee.net, .optimizer = *trainee.optimizer, .step = step + 1, .group = group},
                      how);
  }
  if (!waits) return;
  const std::string written = wait_for_saves(group);
  EXPECT_EQ(written, how.background && group->rank() == 0 ? folder + "/step-00000006" : "");
}

TEST(CheckpointInBackground, OfSlicesHasTheBitsOfOneThatHoldsTheTraining) {
  for (const int ranks : {2, 3}) {
    const Folder before, folder;
    expect_all_well(run_ranks(ranks, "shm", [&](auto group) { save_amid_training(before.path(), group, {}); }));
    expect_all_well(
        run_ranks(ranks, "shm", [&](auto group) { save_amid_training(folder.path(), group, kBackground); }));
    EXPECT_EQ(folder.names(), (std::vector<std::string>{"latest", "step-00000004", "step-00000006"}));
    for (const char* step : {"/step-00000004", "/step-00000006"})
      expect_same_files(before.path() + step, folder.path() + step);
  }
}

TEST(CheckpointInBackground, TheGroupsEndWaitsForIt) {
  const Folder folder;
  expect_all_well(
      run_ranks(2, "shm", [&](auto group) { save_amid_training(folder.path(), group, kBackground, false); }));
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"latest", "step-00000004", "step-00000006"}));
}

TEST(CheckpointInBackground, AnErrorOfOneRankIsReportedOnAllAndTheNextSaveSucceeds) {
  const Folder folder;
  const DiskFault full(folder.path(), DiskCall::kWrite, ENOSPC);
  for (const SaveOptions& how : {kStops, kBackground}) {
    const LogLines log;
    const auto errors = run_ranks(2, "shm", [&](auto group) {
      ZeroTrainee trainee(group, "adamw", true);
      const CheckpointParts parts{.model = trainee.net, .optimizer = *trainee.optimizer, .step = 1, .group = group};
      save_checkpoint(folder.path(), parts, how);
      EXPECT_EQ(wait_for_saves(group), "");
    });
    const bool stops = how.on_error == OnSaveError::kStop;
    EXPECT_THAT(errors, ::testing::Each(stops ? ::testing::Matcher<std::string>(HasSubstr("No space left on device"))
                                              : ::testing::Matcher<std::string>("")));
    const bool warns = log.text().find("step 1 is not saved") != std::string::npos;
    EXPECT_NE(warns, stops) << log.text();
  }
  std::optional<DiskFault> broken;
  const Folder next;
  expect_all_well(run_ranks(2, "shm", [&](auto group) {
    ZeroTrainee trainee(group, "adamw", true);
    const auto save = [&](std::int64_t step) {
      save_checkpoint(next.path(),
                      {.model = trainee.net, .optimizer = *trainee.optimizer, .step = step, .group = group},
                      kBackground);
      return wait_for_saves(group);
    };
    if (group->rank() == 0) broken.emplace(next.path(), DiskCall::kSync, EIO);
    group->barrier();
    EXPECT_EQ(save(1), "");
    group->barrier();
    if (group->rank() == 0) broken.reset();
    group->barrier();
    EXPECT_EQ(save(2), group->rank() == 0 ? next.path() + "/step-00000002" : "");
  }));
}

TEST(CheckpointInBackground, RanksWithOtherOptionsOrStepsAreToldSo) {
  const Folder folder;
  const auto failures = [&](auto differ) {
    return run_ranks(2, "threads", [&](auto group) {
      Trainee run(1);
      CheckpointParts parts = run.parts(1);
      parts.group = group;
      SaveOptions options = kBackground;
      if (group->rank() == 1) differ(parts, options);
      EXPECT_THROW(save_checkpoint(folder.path(), parts, options), MismatchError);
      throw Error("the end");
    });
  };
  EXPECT_THAT(failures([](auto&, auto& options) { options.background = false; }), ElementsAre("the end", "the end"));
  EXPECT_THAT(failures([](auto&, auto& options) { options.on_error = OnSaveError::kStop; }),
              ElementsAre("the end", "the end"));
  EXPECT_THAT(failures([](auto& parts, auto&) { parts.step = 5; }), ElementsAre("the end", "the end"));
}

TEST(CheckpointInBackground, OfSlicesNeedsAGroupWithAStore) {
  const Folder folder;
  EXPECT_THAT(run_ranks(2, "threads", [&](auto group) { save_amid_training(folder.path(), group, kBackground); }),
              ::testing::Each(HasSubstr("has no store")));
}

}  // namespace
}  // namespace lockstep::train

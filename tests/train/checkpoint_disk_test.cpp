// Disks that fail while a checkpoint is saved: by default the training goes on, and the checkpoint before stays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/train/checkpoint.h"
#include "src/core/base/error_of_peer.h"
#include "src/train/files/durable_file.h"
#include "tests/ddp/ranks.h"
#include "tests/support/log_lines.h"
#include "tests/support/message_of.h"
#include "tests/train/checkpoint_folder.h"
#include "tests/train/checkpoint_trainee.h"
#include "tests/train/disk_faults.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Trainee = CheckpointTrainee;
using testing::DiskCall;
using testing::DiskFault;
using testing::Folder;
using testing::LogLines;

constexpr SaveOptions kStop{.on_error = OnSaveError::kStop};

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(CheckpointDisk, AnyFaultIsAWarningOrAnErrorAndTheCheckpointBeforeStays) {
  for (const DiskCall call :
       {DiskCall::kWrite, DiskCall::kSync, DiskCall::kSyncFolder, DiskCall::kRename, DiskCall::kMakeFolder})
    for (const int error : {ENOSPC, EROFS, EIO, EDQUOT}) {
      SCOPED_TRACE(fmt::format("call {}: {}", static_cast<int>(call), std::strerror(error)));
      const Folder folder;
      Trainee run(1);
      save_checkpoint(folder.path(), run.parts(1));
      {
        const DiskFault fault(folder.path(), call, error);
        const auto reason = AllOf(HasSubstr(folder.path()), HasSubstr(std::strerror(error)));
        EXPECT_THAT(message_of([&] { save_checkpoint(folder.path(), run.parts(2), kStop); }), reason);
        const LogLines log;
        EXPECT_EQ(save_checkpoint(folder.path(), run.parts(2)), "");
        EXPECT_EQ(save_checkpoint(folder.path(), run.parts(3)), "");
        EXPECT_THAT(log.text(), reason);
        EXPECT_EQ(count_of(log.text(), "; the next save tries again"), 2u) << "each time: " << log.text();
        EXPECT_THAT(log.text(), HasSubstr("the newest checkpoint is " + folder.path() + "/step-0000000"));
      }
      EXPECT_EQ(resume_checkpoint(folder.path() + "/step-00000001", run.parts()).step, 1);
      EXPECT_EQ(save_checkpoint(folder.path(), run.parts(4)), folder.path() + "/step-00000004");
      EXPECT_EQ(resume_checkpoint(folder.path(), run.parts()).step, 4);
      for (const std::string& name : folder.names()) EXPECT_THAT(name, Not(HasSubstr("writing")));
    }
}

TEST(CheckpointDisk, TheFirstSaveToFailSaysThatThereIsNoCheckpoint) {
  const Folder folder;
  const DiskFault fault(folder.path(), DiskCall::kWrite, ENOSPC);
  const LogLines log;
  Trainee run(1);
  EXPECT_EQ(save_checkpoint(folder.path() + "/run", run.parts(5)), "");
  EXPECT_THAT(log.text(), AllOf(HasSubstr("step 5 is not saved"), HasSubstr("there is no checkpoint yet")));
}

TEST(CheckpointDisk, APreparationStillThrows) {
  const Folder folder;
  const DiskFault fault(folder.path(), DiskCall::kWrite, EROFS);
  EXPECT_THAT(message_of([&] { prepare_checkpoint_folder(folder.path()); }), HasSubstr("Read-only file system"));
  EXPECT_TRUE(folder.names().empty());
}

TEST(CheckpointDisk, AllRanksGoOnOrAllThrowAndOnlyRankZeroWarns) {
  const Folder folder;
  const DiskFault fault(folder.path(), DiskCall::kWrite, ENOSPC);
  const LogLines log;
  testing::expect_all_well(testing::run_ranks(3, "threads", [&](auto group) {
    Trainee run(1);
    CheckpointParts parts = run.parts(2);
    parts.group = group;
    EXPECT_EQ(save_checkpoint(folder.path(), parts), "");
    const std::string message = message_of([&] { save_checkpoint(folder.path(), parts, kStop); });
    EXPECT_THAT(message, AllOf(HasSubstr("save_checkpoint: rank 0: "), HasSubstr("No space left on device")));
    parts.step = group->rank();
    EXPECT_THROW(save_checkpoint(folder.path(), parts), MismatchError);
    parts.step = -1;
    EXPECT_THROW(save_checkpoint(folder.path(), parts), InvalidArgument);
    group->barrier();
  }));
  EXPECT_EQ(count_of(log.text(), "is not saved"), 1u) << log.text();
}

TEST(CheckpointDisk, AFolderOfAnotherJobIsAnErrorOfAllRanks) {
  const Folder folder;
  const FolderLock other(folder.path());
  const auto errors = testing::run_ranks(2, "threads", [&](auto group) {
    Trainee run(1);
    CheckpointParts parts = run.parts(2);
    parts.group = group;
    try {
      save_checkpoint(folder.path(), parts);
    } catch (const FileErrorOfPeer&) {
      EXPECT_EQ(group->rank(), 1);
      throw;
    }
  });
  EXPECT_THAT(errors, ::testing::Each(AllOf(HasSubstr("save_checkpoint: rank 0: "),
                                            HasSubstr(" is running and writes its checkpoints there"))));
}

TEST(CheckpointDisk, WithoutSyncOfFoldersTheSaveGoesOnWithOneWarning) {
  const Folder folder;
  Trainee run(1);
  const DiskFault fault(folder.path(), DiskCall::kSyncFolder, EINVAL);
  const LogLines log;
  for (const int step : {1, 2}) EXPECT_NE(save_checkpoint(folder.path(), run.parts(step), kStop), "");
  EXPECT_EQ(count_of(log.text(), "its file system does not sync folders (Invalid argument)"), 1u) << log.text();
  EXPECT_EQ(resume_checkpoint(folder.path(), run.parts()).step, 2);
}

TEST(CheckpointDisk, WithoutARenameThatReplacesTheErrorSaysWhatToDo) {
  const Folder folder;
  Trainee run(1);
  save_checkpoint(folder.path(), run.parts(1));
  for (const int error : {EEXIST, EOPNOTSUPP}) {
    const DiskFault fault(folder.path(), DiskCall::kRename, error, "/latest");
    EXPECT_THAT(message_of([&] { save_checkpoint(folder.path(), run.parts(2), kStop); }),
                AllOf(HasSubstr("cannot be renamed to " + folder.path() + "/latest: "),
                      HasSubstr("save in a folder on a file system where a rename replaces the old file")));
  }
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"latest", "step-00000001"})) << "failures do not fill the disk";
  EXPECT_EQ(resume_checkpoint(folder.path(), run.parts()).step, 1);
}

}  // namespace
}  // namespace lockstep::train

// The folder of a job's checkpoints: its lock, and which files are kept, ignored and removed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/train/checkpoint.h"
#include "src/core/process/fd.h"
#include "src/train/checkpoint/folder/folder_lock.h"
#include "tests/train/checkpoint_folder.h"
#include "tests/train/checkpoint_trainee.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

using Trainee = CheckpointTrainee;
using testing::file_error_of;
using testing::Folder;

// NFS passes the locks of files to its server, not those of folders.
TEST(CheckpointFolder, TheLockIsOnAFileThatStays) {
  const Folder folder;
  Trainee run(1);
  const auto lock_of = [](const std::string& path) {
    return Fd(::open((path + "/.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  };
  {
    const Fd held = lock_of(folder.path());
    ASSERT_EQ(::flock(held.get(), LOCK_EX | LOCK_NB), 0);
    EXPECT_NE(file_error_of([&] {
                save_checkpoint(folder.path(), run.parts(1));
              }).find("another job, which has left no name, is running and writes its checkpoints there"),
              std::string::npos);
  }
  save_checkpoint(folder.path(), run.parts(1));
  EXPECT_NE(::flock(lock_of(folder.path()).get(), LOCK_EX | LOCK_NB), 0) << "this process keeps it";
}

TEST(CheckpointFolder, AManifestOfAnotherProgramIsNotACheckpoint) {
  const Folder folder;
  Trainee run(1);
  std::ofstream(folder.path() + "/manifest.json") << "{}";
  EXPECT_FALSE(load_checkpoint(folder.path(), run.parts()).has_value());
  save_checkpoint(folder.path(), run.parts(1));
  EXPECT_EQ(load_checkpoint(folder.path(), run.parts())->step, 1);
}

TEST(CheckpointFolder, AFolderIsPreparedOrRefused) {
  const Folder folder;
  prepare_checkpoint_folder(folder.path() + "/a/b");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path() + "/a/b"), {}), 1) << "the lock alone";
  Trainee run(1);
  save_checkpoint(folder.path(), run.parts());
  prepare_checkpoint_folder(folder.path());
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"a", "latest", "step-00000007"}))
      << "existing files are not changed";
  std::ofstream(folder.path() + "/file") << "in the way";
  EXPECT_NE(file_error_of([&] {
              prepare_checkpoint_folder(folder.path() + "/file/a");
            }).find("/file/a: the checkpoint cannot be written"),
            std::string::npos);
  EXPECT_THROW(prepare_checkpoint_folder(""), InvalidArgument);
}

TEST(CheckpointFolder, TheNewestStayAndTheSameStepIsNeverOverwritten) {
  const Folder folder;
  Trainee run(1);
  for (const int step : {1, 2, 3}) save_checkpoint(folder.path(), run.parts(step));
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"latest", "step-00000002", "step-00000003"}));
  save_checkpoint(folder.path(), run.parts(3));
  EXPECT_EQ(load_checkpoint(folder.path(), run.parts())->folder, folder.path() + "/step-00000003.1");
  EXPECT_EQ(folder.names().size(), 3u);
}

TEST(CheckpointFolder, UnfinishedFilesOfACrashAreIgnoredAndRemoved) {
  const Folder folder;
  Trainee run(1);
  save_checkpoint(folder.path(), run.parts(1));
  fs::create_directory(folder.path() + "/writing-step-00000002-1");
  std::ofstream(folder.path() + "/writing-latest") << "half";
  EXPECT_EQ(load_checkpoint(folder.path(), run.parts())->step, 1);
  save_checkpoint(folder.path(), run.parts(2));
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"latest", "step-00000001", "step-00000002"}));
}

TEST(CheckpointFolder, ASaveRemovesOnlyCheckpoints) {
  const Folder folder;
  Trainee run(1);
  for (const char* name : {"writing-thesis", "step-notes", "step-00000001-copy"}) {
    fs::create_directory(folder.path() + "/" + name);
    std::ofstream(folder.path() + "/" + name + "/text") << "mine";
  }
  for (const int step : {1, 2, 3}) save_checkpoint(folder.path(), run.parts(step));
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"latest", "step-00000001-copy", "step-00000002", "step-00000003",
                                                      "step-notes", "writing-thesis"}));
}

TEST(CheckpointFolder, AFolderOfAnotherJobIsNotTouched) {
  const Folder first, folder;
  Trainee run(1);
  save_checkpoint(first.path(), run.parts(1));
  fs::copy(first.path(), folder.path(), fs::copy_options::recursive);
  {
    const FolderLock other(
        folder.path());  // a lock belongs to its descriptor: it also keeps out another one of this process
    EXPECT_NE(file_error_of([&] {
                save_checkpoint(folder.path(), run.parts(2));
              }).find(" is running and writes its checkpoints there"),
              std::string::npos);
  }
  EXPECT_EQ(load_checkpoint(folder.path(), run.parts())->step, 1);
  save_checkpoint(folder.path(), run.parts(2));
  EXPECT_EQ(load_checkpoint(folder.path(), run.parts())->step, 2);
}

}  // namespace
}  // namespace lockstep::train

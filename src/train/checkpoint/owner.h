// Whose a folder of checkpoints is. A job has it from its first save, or prepare_checkpoint_folder(), until its process
// ends (FolderLock). Another job that saves meanwhile is refused. A job that comes after the end of the one before goes
// on with its checkpoints when it has loaded one of them, and replaces them, with a warning, when it has not. What a
// job has loaded or saved last is remembered: a checkpoint of another job that has come since is an error, in a save as
// in a load.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "src/train/checkpoint/job.h"
#include "src/train/checkpoint/read.h"

namespace lockstep::checkpoint {

// That of a checkpoint's folder.
Origin origin_in(const std::filesystem::path& checkpoint);

// One more than those of all checkpoints in the folder.
std::int64_t next_sequence(const std::filesystem::path& folder);

// This job's use of the folder, for one call: another thread of the process waits, for some seconds.
class FolderUse {
 public:
  // Takes the lock where the job does not have it yet. Throws FileError where another job has it, unless `overwrite`.
  FolderUse(const std::filesystem::path& folder, bool overwrite);
  ~FolderUse();
  FolderUse(const FolderUse&) = delete;
  FolderUse& operator=(const FolderUse&) = delete;

  // Before a save: throws FileError where another job has written since this one loaded or saved, unless `overwrite`. A
  // job that has done neither warns, once, that it replaces another one's checkpoints.
  void check_newest(bool overwrite) const;
  std::string lineage() const;
  void saved() const;  // `latest` names this job's newest from now on

 private:
  struct Known;
  friend class FoldersKnown;
  std::filesystem::path folder_;
  std::shared_ptr<Known> known_;
};

// A load found this in the folder that it was given (none: nothing). Throws FileError where the newest is another
// job's, written while this one trains and saves there, unless `overwrite`.
void check_and_note_load(const std::filesystem::path& folder, const LoadedCheckpoint* found, bool overwrite);

}  // namespace lockstep::checkpoint

// The folder that holds a job's checkpoints: which job it belongs to, what is in it, and what may be removed.
//
// A folder belongs to one job. The process holds its lock from the first save until it ends, and remembers the newest
// checkpoint that it has loaded or saved there: if another job has saved since, the next save or load is an error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "src/train/checkpoint/checkpoint_reader.h"
#include "src/train/checkpoint/folder/retention.h"

namespace lockstep::train::checkpoint {

// This job's use of the folder for one save. Another thread of this process waits some seconds for its end.
class FolderUse {
 public:
  // Makes the folder if it is missing, locks it for this job, and removes what a crash left unfinished. Nothing else
  // removes that: without the lock it cannot be told from a checkpoint that another machine is writing. Throws
  // FolderRefusal, for instance if another job has the folder (unless `overwrite`), FileError and filesystem_error.
  FolderUse(const std::filesystem::path& folder, bool overwrite);
  ~FolderUse();
  FolderUse(const FolderUse&) = delete;
  FolderUse& operator=(const FolderUse&) = delete;

  // Call it before a save. Throws FolderRefusal if another job has written since this one loaded or saved, unless
  // `overwrite`. If this job has done neither, logs a warning, once, that it replaces another job's checkpoints.
  void check_newest(bool overwrite) const;
  std::string lineage() const;
  void note_saved() const;  // `latest` now names this job's newest checkpoint
  // The names of the checkpoints that this job's loads have found damaged.
  std::set<std::string> damaged() const;

 private:
  struct Record;
  friend class FolderRecords;
  FolderUse(std::shared_ptr<Record> record, const std::filesystem::path& folder, bool overwrite);

  std::shared_ptr<Record> record_;
  std::filesystem::path folder_;
};

// Call it after a load, with what was found in the folder, or null. Throws FileError if that is another job's newest
// checkpoint, written while this job trains and saves there, unless `overwrite`.
void check_and_note_load(const std::filesystem::path& folder, const LoadedCheckpoint* found, bool overwrite);

// Takes the folder as a save does, and writes and removes a file in it.
void try_folder(const std::filesystem::path& folder, bool overwrite);

// The name of the next checkpoint. A run that repeats a step must not touch the folder that `latest` may name.
std::string free_name(const std::filesystem::path& folder, std::int64_t step);

// The manifest's entries. A manifest that cannot be read gives the defaults.
Origin origin_in(const std::filesystem::path& checkpoint);
std::vector<KeptCheckpoint> checkpoints_in(const std::filesystem::path& folder);

// Removes the checkpoints of these names.
void remove_old(const std::filesystem::path& folder, const std::vector<std::string>& names);

// Logs a warning instead of throwing.
void remove_quietly(const std::filesystem::path& path);

}  // namespace lockstep::train::checkpoint

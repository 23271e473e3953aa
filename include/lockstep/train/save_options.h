// How a checkpoint is saved: beside the training, and what happens if the disk fails.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "lockstep/comm/process_group.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

// If the file system fails: no space, no right, an error of the disk, or a disk that is too slow.
enum class OnSaveError {
  // The training goes on. Rank 0 logs a warning each time: the file, the reason, and the newest checkpoint that is
  // intact. The next save tries again.
  kContinue,
  kStop,  // all ranks throw FileError
};

// The same on all ranks.
struct SaveOptions {
  // The ranks copy what they save into host memory, and go on; a thread of each process that writes files then writes
  // the copy (PyTorch: dcp.async_save). On rank 0 the copy takes as much memory as the checkpoint's files, on the other
  // ranks as much as their slices of the optimizer's state, if they have any. It is used again by the next save, and
  // freed with the group.
  //
  // The thread runs with the lowest priority. If the optimizer's state is sliced, the threads of all ranks meet in a
  // group of their own, which the first such save makes: `group` must have a store, as those of init_process_group()
  // and ProcessGroup::create().
  //
  // At most one save is being written. The next save_checkpoint(), prepare_checkpoint_folder() and load_checkpoint(),
  // wait_for_saves(), the end of Trainer::fit() and train(), the destruction of the group, and the normal end of the
  // program wait for it. A save that still has no end after 2 minutes, or half of the group's timeout if that is less,
  // makes the next one fail as on a full disk. If a rank dies, the threads of the others end within the deadlines of
  // the group.
  bool background = false;
  OnSaveError on_error = OnSaveError::kContinue;
  // Checkpoints younger than this stay, also beyond CheckpointParts::keep. Ages count from the new checkpoint and go by
  // the time in the manifests, which may have jumped: none counts as younger than those that were saved after it. (So
  // one from the future is as old as the next one; if the clock goes back, what was saved before stays for `keep_for`
  // from then on.)
  std::chrono::seconds keep_for{0};
};

// Collective among the ranks that saved. Blocks until the last background save of the group has ended; null: the
// default group, or this process alone. Returns the checkpoint's folder on rank 0, "" on the other ranks. If that save
// failed and no call has reported it: throws what save_checkpoint() would, or returns "" after kContinue's warning.
// Returns "" at once if the group has saved nothing in the background since the last call. If nothing is written for 5
// minutes, this is an error of the disk, too.
std::string wait_for_saves(const std::shared_ptr<ProcessGroup>& group = nullptr);

}  // namespace lockstep::train
#pragma GCC visibility pop

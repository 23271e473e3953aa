// Checkpoints: one folder for each saved step, which is either complete or does not exist.
//
//   run/ckpt/step-00000120/
//     model.safetensors      the weights, under the names of the bare model; Python's safetensors reads it
//     optimizer.safetensors  the optimizer's state. If each rank has slices of it (ddp/zero.h), each rank writes a file
//                            optimizer-00001-of-00004.safetensors, ..., and any number of ranks loads them
//     averages.safetensors   averages of the weights, if there are any
//     comm_hook.safetensors  a comm hook's state of all ranks, if it has any
//     program.safetensors    tensors of the program, if there are any
//     rank-00002-of-00004.safetensors
//                            the ignored_parameters (ddp/ddp_options.h) of each rank other than 0, with their optimizer
//                            state and averages; rank 0's are in the files above
//     state.json             step, epoch, sampler position, random states, versions, bucket layout
//     manifest.json          SHA-256 and size of every file above; the job that saved; number and time of the save
//   run/ckpt/latest          the folder's name and the SHA-256 of its manifest; replaced last
//   run/ckpt/.lock           locked by the job that saves here, until its process ends, also on NFS; has the job's name
//
// Rank 0 writes all files but the slices. A checkpoint is written to a temporary folder, synced and renamed; then
// `latest` is replaced; then all but the newest `keep` and those younger than SaveOptions::keep_for are removed. After
// a crash at any point the checkpoint before is intact, and at most a folder `writing-*` is left, which the next save
// removes (a load never writes). On file systems with files without a name (O_TMPFILE) nothing is left by a crash while
// the data is written. Convolution weights are saved as they lie in memory, OHWI, and flatten is H, W, C: the metadata
// has both.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/sampler.h"
#include "lockstep/ddp/ddp.h"
#include "lockstep/nn/module.h"
#include "lockstep/optim/ema.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/tensor/random.h"
#include "lockstep/train/save_options.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

// A reference that may be absent; made from the object itself: `.optimizer = sgd`.
template <typename T> class OptionalReference {
 public:
  OptionalReference() = default;
  OptionalReference(T& object) : object_(&object) {}
  OptionalReference(T* object) : object_(object) {}  // null: absent
  T* get() const { return object_; }
  T* operator->() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  T* object_ = nullptr;
};

// State of the program, in addition to that of model and optimizer. Trainer keeps its history and its callbacks' state
// in it.
struct ProgramState {
  std::string text = {};                  // any UTF-8 text; a string of state.json
  std::vector<NamedTensor> tensors = {};  // in program.safetensors; after a load: on the CPU, in any order
};

// The parts of a checkpoint. Only the model is required. The caller owns all of them; they are used during the call
// only, also by a save in the background.
struct CheckpointParts {
  nn::Module& model;  // the bare model, not the wrapper
  OptionalReference<optim::Optimizer> optimizer = {};
  OptionalReference<optim::ExponentialMovingAverage> ema = {};
  OptionalReference<data::Sampler> sampler = {};
  // Saves its state() as the sampler's. A load does not use it.
  OptionalReference<const data::DataLoader> loader = {};
  OptionalReference<DistributedDataParallel> ddp = {};  // its comm hook, and its buckets, which a load plans as before
  std::int64_t step = 0;                                // steps done
  std::int64_t epoch = 0;
  // Each call uses this group; if it is null, the group of .ddp; without .ddp, the default group
  // (comm/process_group.h); without a default group, this process alone. If this group and that of .ddp have different
  // ranks, all ranks throw. A thread of the program that saves during the training needs a group of its own.
  std::shared_ptr<ProcessGroup> group = nullptr;
  int keep = 2;                            // newest saves to keep, including the new one
  std::optional<RandomState> random = {};  // to save; nullopt: that of the calling thread
  bool overwrite = false;                  // takes the folder, or its checkpoint, from another job: see below
  // A load replaces it, on all ranks by rank 0's; it is empty if the checkpoint has none.
  OptionalReference<ProgramState> program = {};
};

// Collective. Rank 0 writes, and returns the checkpoint's folder; the others return "", and all do so if the disk fails
// or a thread saves in the background (wait_for_saves() returns the folder then). If the ranks have slices of the
// optimizer's state, each rank writes its own, and all ranks must see the folder. While ema.swapped() lives, the
// weights are saved, not the averages that the parameters hold. Each rank's random state and ignored parameters are
// saved, for the same rank of a job with as many ranks. Removes nothing but checkpoints and what a crash left of one.
//
// If any rank fails, the previous checkpoint still loads, nothing unfinished is left, and all ranks throw:
//   FileError        the folder belongs to another job, or is a checkpoint; with OnSaveError::kStop also an error of
//   the
//                    file system, which is a warning otherwise: file and reason; on several ranks after
//                    "save_checkpoint: rank R: "
//   InvalidArgument  a negative step, epoch or age, keep below 1
//   MismatchError    ranks at different steps or epochs, with other options, or replicas of a DistributedDataParallel
//                    that differ
//
// A folder belongs to one job. From the job's first save (or prepare_checkpoint_folder) until its process ends, another
// job that saves there throws FileError with that job's host, process and start. After that, the next job either has
// loaded its checkpoint and continues from it, or begins anew, with a warning, and replaces its checkpoints one by one.
// If another job has saved since this one loaded or saved, the next save throws FileError. `overwrite` saves all the
// same; a running job that loses its folder this way throws in its next save.
std::string save_checkpoint(const std::string& folder, const CheckpointParts& parts, const SaveOptions& options = {});

// Finds out before the training, not after its first epoch, that a folder cannot be written. Collective: rank 0 makes
// the folder, takes it for this job, and writes and removes a file in it. Throws as save_checkpoint() does with
// OnSaveError::kStop.
void prepare_checkpoint_folder(const std::string& folder, const std::shared_ptr<ProcessGroup>& group = nullptr,
                               bool overwrite = false);

struct CheckpointState {
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  int world_size = 1;  // of the run that saved it
  std::string folder;  // of the checkpoint
};

// Collective. `folder` is either the folder that save_checkpoint() was given, of which the newest checkpoint is loaded,
// or that of one checkpoint (run/ckpt/step-00000120). If the newest is damaged (a file's size or checksum, a missing
// file, broken JSON, also `latest`), a warning names the damage, and the one before it in the same training is loaded;
// one that was named itself is never replaced by another. Waits for a save in the background. Only rank 0 reads, so
// that the folder may exist on its machine only. It verifies every size and checksum, then sends the state to all
// ranks: parameters, buffers, optimizer state, sampler and random state take the saved values, and the ranks compare
// hashes. Returns nullopt on all ranks if there is no checkpoint, as before a job's first save, and also if the
// folder's name is mistyped.
//
// If any rank fails, all ranks throw, and nothing has changed:
//   FileError        no checkpoint is intact, or it is of another model, layout or format: files and difference, on
//                    the other ranks after "rank R: ". Also if this job has saved in the folder, and the newest
//                    checkpoint is another job's (unless .overwrite)
//   MismatchError    the ranks give different parts: the first such rank and the difference
//   InvalidArgument  ema.swapped() lives
//
// On another number of ranks than saved it: if the ranks had different random states, additional ranks begin fresh
// streams, whose seeds are made of rank 0's seed and their numbers, with a warning. Ignored parameters of the ranks are
// an error; without .ddp all ranks get rank 0's, with a warning.
std::optional<CheckpointState> load_checkpoint(const std::string& folder, const CheckpointParts& parts);

// The same for callers that need a checkpoint: if there is none, throws FileError with what the folder holds instead.
CheckpointState resume_checkpoint(const std::string& folder, const CheckpointParts& parts);

}  // namespace lockstep::train
#pragma GCC visibility pop

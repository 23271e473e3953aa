// Checkpoints: a folder a step, written by rank 0 (slices of an optimizer's state by their ranks), that is either whole
// or not there.
//
//   run/ckpt/step-00000120/model.safetensors      weights under the bare model's names; read by Python's safetensors
//                          optimizer.safetensors  the optimizer's state; of ranks with a slice of it each (ddp/zero.h)
//                          a file a rank,
//                                                 optimizer-00001-of-00004.safetensors, ..., which any number of ranks
//                                                 loads
//                          averages.safetensors   averages of the weights, where there are any
//                          comm_hook.safetensors  a comm hook's state, of all ranks, where it has any
//                          program.safetensors    tensors of the program's own, where there are any
//                          rank-00002-of-00004.safetensors  what each other rank has of its own: ignored_parameters
//                          (ddp/options.h) with
//                                                 their state and averages; rank 0's are in the files above
//                          state.json             step, epoch, sampler position, random states, versions, bucket layout
//                          manifest.json          SHA-256 and size of every file above; the job that saved, the number
//                          of the save
//   run/ckpt/latest        the folder's name and the SHA-256 of its manifest; replaced last
//   run/ckpt/.lock         locked by the job that saves here, until its process ends, on NFS too; it has the job's name
// A checkpoint is written to a temporary folder, synced, renamed; then `latest` moves; then all but the newest `keep`
// are removed. A crash at any point leaves the one before intact, and at most a folder `writing-*`, which the next save
// removes (a load never writes); where the file system has files without a name (O_TMPFILE) it leaves nothing while the
// data is written. Convolution weights are saved as they lie in memory, OHWI, and flatten is H, W, C: the metadata says
// so.
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

#pragma GCC visibility push(default)
namespace lockstep {

// A reference that may be absent; made from the object itself: `.optimizer = sgd`.
template <typename T>
class OptionalReference {
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

// State of the program's own, beside that of model and optimizer: Trainer keeps its history and its callbacks' state by
// it.
struct ProgramState {
  std::string text = {};                  // UTF-8, of any form; a string of state.json
  std::vector<NamedTensor> tensors = {};  // in program.safetensors; loaded ones: on the CPU, in any order
};

// The parts of a checkpoint. Only the model is needed. All are the caller's and are used during the call alone.
struct CheckpointParts {
  nn::Module& model;  // the bare one, not the wrapper
  OptionalReference<optim::Optimizer> optimizer = {};
  OptionalReference<optim::ExponentialMovingAverage> ema = {};
  OptionalReference<data::Sampler> sampler = {};
  OptionalReference<const data::DataLoader> loader =
      {};  // saves its state() as the sampler's; a load does not look at it
  OptionalReference<DistributedDataParallel> ddp = {};  // its comm hook; its buckets, which a load plans as they were
  std::int64_t step = 0;                                // steps done
  std::int64_t epoch = 0;
  // One rule, in each call: this group; null: .ddp's; without both the default group (comm/process_group.h); none: a
  // job of one. It is an error on all ranks where this one and .ddp's have other ranks. A thread that saves beside the
  // training has a group of its own.
  std::shared_ptr<ProcessGroup> group = nullptr;
  int keep = 2;  // checkpoints that stay, the new one counted: the newest by the order of the saves
  std::optional<RandomState> random = {};  // to save; none: the calling thread's
  bool overwrite = false;  // takes the folder, or its checkpoint, although it is another job's: see below
  OptionalReference<ProgramState> program =
      {};  // a load replaces it, on all ranks by rank 0's; empty where the checkpoint has none
};

// Collective. Rank 0 writes and returns the checkpoint's folder, the others "". Where the ranks have slices of the
// optimizer's state, each rank writes its own, and the folder must be one that all ranks see. Throws FileError on all
// ranks, naming file and reason; the previous checkpoint then still stands and nothing half-written is left.
// InvalidArgument on all ranks: a negative step or epoch, keep below 1. MismatchError: ranks at different steps or
// epochs, or replicas of a DistributedDataParallel whose parameters have parted. Removes nothing but checkpoints and
// what a crash left of one. While ema.swapped() lives the weights are saved, not the averages that the parameters hold.
// Each rank's random state is saved, and what DistributedDataParallel ignores, for the same rank of a job with as many
// ranks.
//
// A folder is one job's. From its first save (or prepare_checkpoint_folder) until its process ends, another job that
// saves there is refused: FileError, with that job's host, process and start. After it has ended the next job goes on
// from its checkpoint, which it has loaded, or begins anew, with a warning, and replaces its checkpoints one by one. A
// checkpoint of another job that came after this one loaded or saved is an error. `overwrite` saves all the same; a job
// that runs and loses its folder so has an error in its next save.
std::string save_checkpoint(const std::string& folder, const CheckpointParts& parts);

// Better before the training than after its first epoch. Collective: rank 0 makes the folder, takes it for this job,
// and writes and removes a file in it. Throws what save_checkpoint would throw.
void prepare_checkpoint_folder(const std::string& folder, const std::shared_ptr<ProcessGroup>& group = nullptr,
                               bool overwrite = false);

struct CheckpointState {
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  int world_size = 1;  // of the run that wrote it
  std::string folder;  // what was read
};

// Collective. `folder` is what save_checkpoint was given, of which the newest is taken, or one checkpoint's own
// (run/ckpt/step-00000120). Rank 0 alone reads (the folder may exist on its machine only) and verifies every size and
// checksum, then broadcasts; parameters, buffers, optimizer state, sampler and random state take the saved values.
// Afterwards ranks compare hashes. Returns nullopt on all ranks when there is none, as before a job's first save; so
// does a folder whose name is mistyped. A damaged checkpoint, another model's, one of another layout or format:
// FileError with file and difference, the same on every rank, and nothing was changed. Nor is it where ranks give
// different parts: MismatchError with the first rank and difference. InvalidArgument while ema.swapped() lives.
// FileError where the folder is this job's, it has saved there, and the newest is another job's (unless .overwrite). On
// another number of ranks than saved it: where ranks had random states of their own, ranks that it did not have begin
// fresh streams, of seeds made of rank 0's and their numbers, with a warning; what ranks had of their own by
// ignored_parameters is refused, and without .ddp all ranks get rank 0's, with a warning.
std::optional<CheckpointState> load_checkpoint(const std::string& folder, const CheckpointParts& parts);

// The same for callers who know that there is one: without one it throws a FileError that says what the folder holds
// instead.
CheckpointState resume_checkpoint(const std::string& folder, const CheckpointParts& parts);

}  // namespace lockstep
#pragma GCC visibility pop

// Checkpoints: a folder a step, written by rank 0 (slices of an optimizer's state by their ranks), that is either whole or not there.
//
//   run/ckpt/step-00000120/model.safetensors      weights under the bare model's names; read by Python's safetensors
//                          optimizer.safetensors  the optimizer's state; of ranks with a slice of it each (ddp/zero.h) a file a rank,
//                                                 optimizer-00001-of-00004.safetensors, ..., which any number of ranks loads
//                          averages.safetensors   averages of the weights, where there are any
//                          comm_hook.safetensors  a comm hook's state, of all ranks, where it has any
//                          program.safetensors    tensors of the program's own, where there are any
//                          state.json             step, epoch, sampler position, random state, versions, bucket layout
//                          manifest.json          SHA-256 and size of every file above
//   run/ckpt/latest        the folder's name and the SHA-256 of its manifest; replaced last
//   run/ckpt/.lock         locked by the process that saves, on NFS too
// A checkpoint is written to a temporary folder, synced, renamed; then `latest` moves; then all but the newest `keep` are removed. A crash
// at any point leaves the one before intact, and at most a folder `writing-*`, which the next save removes (a load never writes); where the
// file system has files without a name (O_TMPFILE) it leaves nothing while the data is written. Convolution weights are saved as they lie
// in memory, OHWI, and flatten is H, W, C: the metadata says so.
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

// State of the program's own, beside that of model and optimizer: Trainer keeps its history and its callbacks' state by it.
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
  OptionalReference<const data::DataLoader> loader = {};  // saves its state() as the sampler's; a load does not look at it
  OptionalReference<DistributedDataParallel> ddp = {};    // its comm hook; its buckets, which a load plans as they were
  std::int64_t step = 0;                                  // steps done
  std::int64_t epoch = 0;
  std::shared_ptr<ProcessGroup> group = nullptr;  // null: the thread's default group; none: a job of one
  int keep = 2;                                   // checkpoints that stay, the new one counted
  OptionalReference<ProgramState> program = {};   // a load replaces it, on all ranks by rank 0's; empty where the checkpoint has none
};

// Rank 0 writes and returns the checkpoint's folder; other ranks return "" at once. In three cases the call is collective: where
// a DistributedDataParallel of several ranks holds the model, whose parameters are compared (MismatchError on all ranks, with the first
// that differs, before anything is written); where `ddp` has a comm hook with state, which goes to rank 0; and where the ranks have slices
// of the optimizer's state: then each rank writes its own, and the folder must be one that all ranks see (else FileError on all). Throws
// FileError naming file and reason; the previous checkpoint then still stands and nothing half-written is left. Removes nothing but
// checkpoints and what a crash left of one. Two jobs must not share a folder: a save that meets another job's is such an error.
std::string save_checkpoint(const std::string& folder, const CheckpointParts& parts);

// Better told before the training than after its first epoch: rank 0 makes the folder and writes and removes a file in it; other
// ranks return at once. Throws what save_checkpoint would throw.
void prepare_checkpoint_folder(const std::string& folder, const std::shared_ptr<ProcessGroup>& group = nullptr);

struct CheckpointState {
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  int world_size = 1;  // of the run that wrote it
  std::string folder;  // what was read
};

// Collective. `folder` is what save_checkpoint was given, of which the newest is taken, or one checkpoint's own (run/ckpt/step-00000120).
// Rank 0 alone reads (the folder may exist on its machine only) and verifies every size and checksum, then broadcasts; parameters,
// buffers, optimizer state, sampler and random state take the saved values. Afterwards ranks compare hashes. Returns nullopt on all ranks
// when there is none, as before a job's first save; so does a folder whose name is mistyped. A damaged checkpoint, another model's, one of
// another layout or format: FileError with file and difference, the same on every rank, and nothing was changed. Nor is it where ranks give
// different parts: MismatchError with the first rank and difference.
std::optional<CheckpointState> load_checkpoint(const std::string& folder, const CheckpointParts& parts);

// The same for callers who know that there is one: without one it throws a FileError that says what the folder holds instead.
CheckpointState resume_checkpoint(const std::string& folder, const CheckpointParts& parts);

}  // namespace lockstep
#pragma GCC visibility pop

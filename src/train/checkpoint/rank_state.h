// The state that differs between ranks: random streams, the tensors that DistributedDataParallel ignores, the state of
// comm hooks.
#pragma once

#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <vector>

#include "lockstep/comm/agreement.h"
#include "lockstep/reduce/comm_hook.h"
#include "lockstep/tensor/named_tensor.h"
#include "lockstep/tensor/random.h"
#include "lockstep/train/checkpoint.h"
#include "src/train/checkpoint/checkpoint_reader.h"

namespace lockstep::train::checkpoint {

// -- random states in state.json: "random" is rank 0's; "random_of_ranks" lists all of them if they differ

void add_random(nlohmann::ordered_json& state, const std::vector<RandomState>& of_ranks);

// The random state of rank `rank` of `ranks`. A rank that the saved run did not have begins fresh streams: their seed
// is made of rank 0's seed and the rank's number.
RandomState random_of(const nlohmann::json& state, int rank, int ranks);

// "", or what becomes of the ranks' own random states on another number of ranks.
std::string warning_of_random(const nlohmann::json& state, int ranks);

// -- own tensors: the parameters and buffers in DistributedDataParallelOptions::ignored_parameters, with their
// optimizer state and averages. Rank 0's are in the files of the model, the optimizer and the averages. Each other rank
// has a file of its own, rank-00002-of-00004.safetensors, which rank 0 writes and reads.

// The parts of a checkpoint: the names in a rank's own file begin with "model/", "optimizer/" or "averages/".
enum class Part { kModel, kOptimizer, kAverages };

class OwnTensors {
 public:
  explicit OwnTensors(const CheckpointParts& parts);

  bool any() const { return !all_.empty(); }
  // Live tensors, as "model/<name>", "optimizer/<name>", "averages/<name>".
  const std::vector<NamedTensor>& all() const { return all_; }
  bool has(Part part, const std::string& name) const;
  // The tensors of the part that all ranks share.
  std::vector<NamedTensor> shared(Part part, const std::vector<NamedTensor>& tensors) const;

 private:
  void add(Part part, const NamedTensor& entry);

  std::vector<NamedTensor> all_;
  std::unordered_set<std::string> names_;  // of all_
};

// The file of this rank; empty for rank 0, and if nothing is its own.
std::vector<std::byte> own_file(const OwnTensors& own, int rank);
// Collective if any of `sizes`, the files' sizes by rank, is not 0. Returns the files of all ranks on rank 0, and {} on
// the others.
std::vector<std::vector<std::byte>> gather_own(GroupRef group, const std::vector<std::size_t>& sizes,
                                               const std::vector<std::byte>& mine);

// On rank 0: the sizes of the files to send to the ranks; {} if there are none for these ranks. Logs a warning if all
// ranks get what was rank 0's own. Throws FileError if the number of ranks is another, or .ddp is missing.
std::vector<std::size_t> plan_own(const LoadedCheckpoint& loaded, const OwnTensors& own, int ranks, bool has_ddp);
// Collective: returns this rank's file. `sizes` is the result of plan_own(), on all ranks; `loaded` is null except on
// rank 0.
std::vector<std::byte> scatter_own(GroupRef group, const LoadedCheckpoint* loaded,
                                   const std::vector<std::size_t>& sizes);

// -- the state of comm hooks in comm_hook.safetensors. State that each rank has of its own has the shape (ranks, count)
// there.

// {} if there is no hook.
std::vector<HookState> states_of(const CommHook& hook);

// Collective if there is any state. Returns the state on rank 0, and {} on the others.
std::vector<NamedTensor> gather_hook_state(const CommHook& hook, GroupRef group);

// Throws FileError, which begins with `path`, if `saved` is not the state of this hook.
void check_hook_state(const CommHook& hook, const std::vector<SavedTensor>& saved, const std::string& path);

// Collective: copies rank 0's `saved`, null on the others, to the hooks of all ranks. If another number of ranks saved
// it, each rank gets the mean of the ranks' own state, so that the sum still to be sent stays the same.
void restore_hook_state(const CommHook& hook, const std::vector<SavedTensor>* saved, GroupRef group);

}  // namespace lockstep::train::checkpoint

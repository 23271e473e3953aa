// What is each rank's own, as DistributedDataParallelOptions::ignored_parameters names it: parameters and buffers, with
// the optimizer's state and the averages that belong to them. Rank 0's are in the files of the model, the optimizer and
// the averages; each other rank's in a file of its own, rank-00002-of-00004.safetensors, which rank 0 writes and reads.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "lockstep/tensor/named_tensor.h"
#include "lockstep/train/checkpoint.h"
#include "src/train/checkpoint/checkpoint_group.h"
#include "src/train/checkpoint/read.h"

namespace lockstep::checkpoint {

// The parts of a checkpoint, as the names in a rank's own file begin.
enum class Part { kModel, kOptimizer, kAverages };

class OwnTensors {
 public:
  explicit OwnTensors(const CheckpointParts& parts);

  bool any() const { return !all_.empty(); }
  // "model/<name>", "optimizer/<name>", "averages/<name>"; live ones.
  const std::vector<NamedTensor>& all() const { return all_; }
  bool has(Part part, const std::string& name) const;
  // Those of the part's tensors that all ranks share.
  std::vector<NamedTensor> shared(Part part, const std::vector<NamedTensor>& tensors) const;

 private:
  void add(Part part, const NamedTensor& entry);

  std::vector<NamedTensor> all_;
  std::unordered_set<std::string> names_;  // of all_
};

// The file of this rank; empty where nothing is its own, or it is rank 0.
std::vector<std::byte> own_file(const OwnTensors& own, int rank);
// Collective where any is not empty: the files of all ranks, on rank 0; elsewhere nothing.
std::vector<std::vector<std::byte>> gather_own(const CallGroup& group, const SaveFacts& facts,
                                               const std::vector<std::byte>& mine);

// On rank 0: the sizes of the ranks' files, which are to be sent to them; empty: there are none for these ranks. Warns
// where all ranks get what was rank 0's own. FileError where the ranks are others, or .ddp is missing.
std::vector<std::size_t> plan_own(const LoadedCheckpoint& loaded, const OwnTensors& own, int ranks, bool has_ddp);
// Collective: this rank's file, by such a plan, the same on all ranks. `loaded` is null but on rank 0.
std::vector<std::byte> scatter_own(const CallGroup& group, const LoadedCheckpoint* loaded,
                                   const std::vector<std::size_t>& bytes);

}  // namespace lockstep::checkpoint

// The optimizer's state in a file a rank, where each rank has slices of it (ddp/zero.h):
//
//   optimizer-00002-of-00004.safetensors      rank 1's: "conv1.weight.momentum[120:240]", elements 120 .. 239 of that
//   tensor
//
// Counts of steps, which all ranks have, are in rank 0's file, under their plain names. The metadata has the shapes of
// the whole tensors, so that any number of ranks, with slices or without, loads them.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/optim/optimizer.h"
#include "src/train/files/safetensors.h"

namespace lockstep::checkpoint {

std::string shard_name(int rank, int ranks);
bool is_shard_name(std::string_view name);

// rank-00002-of-00004.safetensors: what rank 1 has of its own (checkpoint_own.h).
std::string rank_name(int rank, int ranks);
bool is_rank_name(std::string_view name);

// What `rank` writes: its slices, on rank 0 the counts too.
std::vector<NamedTensor> shard_of(const std::vector<optim::StatePart>& parts, int rank);
std::map<std::string, std::string> shard_metadata(const std::vector<optim::StatePart>& parts);

// A shard as it was read.
struct Shard {
  std::string path;
  SavedTensors saved;
};
// The whole tensors. `shards` are those of ranks 0, 1, ... in this order; `memory` takes what tensors are put together
// in. Throws FileError with file and tensor for elements that are missing, come twice, or do not fit the shape.
std::vector<SavedTensor> put_together(const std::vector<Shard>& shards, std::list<std::vector<std::byte>>& memory);

}  // namespace lockstep::checkpoint

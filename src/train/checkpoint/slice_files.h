// The files of slices of an optimizer's state.
//
// The optimizer's state lies in one file for each rank if the ranks have slices of it (ddp/zero.h). A slice is named
// "conv1.weight.momentum[120:240]" for the elements 120 to 239 of that tensor. The counts of steps, which all ranks
// have, are in rank 0's file, under their plain names. The metadata has the shapes of the whole tensors, so that any
// number of ranks, with slices or without, loads them.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "lockstep/optim/optimizer.h"
#include "src/train/files/safetensors.h"

namespace lockstep::train::checkpoint {

// The tensors that `rank` writes: its slices, and the counts if it is rank 0.
std::vector<NamedTensor> shard_of(const std::vector<optim::StatePart>& parts, int rank);
std::map<std::string, std::string> shard_metadata(const std::vector<optim::StatePart>& parts);

// A file of slices, as it was read.
struct Shard {
  std::string path;
  SavedTensors saved;
};

// Joins the slices of all files, in the order of the ranks, to whole tensors, which lie in `memory`. Throws FileError
// for elements that are missing, come twice, or do not fit the shape.
std::vector<SavedTensor> join_slices(const std::vector<Shard>& shards, std::list<std::vector<std::byte>>& memory);

}  // namespace lockstep::train::checkpoint

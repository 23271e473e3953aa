// What the ranks of one node share in a group of several nodes: their rounds, and where their buffers lie.
//
// Ranks are counted by local rank.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/comm/ring/control_block.h"
#include "src/comm/ring/fabric.h"
#include "src/comm/ring/group_watch.h"
#include "src/comm/ring/registered_memory.h"
#include "src/comm/ring/rounds.h"

namespace lockstep::ring {

class NodeBuffers {
 public:
  // `control` is the fabric's first segment. The fabric outlives this.
  NodeBuffers(LocalFabric& fabric, std::shared_ptr<SharedSegment> control, int local_rank, int ranks, GroupWatch& watch);

  int ranks() const { return layout_.ranks(); }
  int local_rank() const { return local_rank_; }
  Rounds& rounds() { return rounds_; }
  std::byte* slot(int rank, std::uint64_t round) const { return layout_.slot(rank, round); }

  // A round in which the ranks say where their data of this call lies; true: all in one registered segment.
  bool locate(const void* data, std::size_t bytes);
  // After that, if it was true: the rank's data.
  std::byte* located(int rank) const { return located_[static_cast<std::size_t>(rank)]; }

  // Collective: a segment of that many bytes for each rank, with one round in which the ranks say whether they have it. What
  // kept this node's ranks from it is left in `failure`, and null returned.
  std::shared_ptr<SharedSegment> share(std::size_t bytes_each, std::chrono::milliseconds timeout, std::string& failure);
  Buffer add(std::shared_ptr<SharedSegment> segment, std::size_t bytes) {
    return RegisteredMemory::add(memory_, std::move(segment), bytes);
  }

  // Windows through which plain memory passes: made on first use, a collective then. A node that cannot have them ends the group.
  void need_windows(std::size_t count, std::size_t bytes, std::chrono::milliseconds timeout);
  std::byte* window(int rank, std::size_t index) const {
    return windows_->data() + (static_cast<std::size_t>(rank) * window_count_ + index % window_count_) * window_bytes_;
  }

 private:
  LocalFabric& fabric_;
  std::shared_ptr<SharedSegment> control_;
  ControlLayout layout_;
  int local_rank_;
  GroupWatch& watch_;
  Rounds rounds_;
  std::shared_ptr<RegisteredMemory> memory_;
  std::vector<std::byte*> located_;  // by rank
  std::shared_ptr<SharedSegment> windows_;
  std::size_t window_count_ = 0, window_bytes_ = 0;
};

}  // namespace lockstep::ring

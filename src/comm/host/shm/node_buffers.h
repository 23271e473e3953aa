// The rounds of ranks that share memory, and the locations of their buffers.
//
// Ranks are local ranks here.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/comm/host/liveness/failure_detector.h"
#include "src/comm/host/machine/control_block.h"
#include "src/comm/host/machine/shared_memory_provider.h"
#include "src/comm/host/shm/registered_memory.h"
#include "src/comm/host/shm/rounds.h"

namespace lockstep::host {

class NodeBuffers {
 public:
  // `control` is the provider's first segment. The provider outlives this object.
  NodeBuffers(SharedMemoryProvider& provider, std::shared_ptr<SharedSegment> control, int local_rank, int ranks,
              FailureDetector& detector);

  int ranks() const { return layout_.ranks(); }
  int local_rank() const { return local_rank_; }
  Rounds& rounds() { return rounds_; }
  std::byte* slot(int rank, std::uint64_t round) const { return layout_.slot(rank, round); }

  // Runs a round in which the ranks publish the location of this call's data. Returns true if all are in one registered
  // segment.
  bool locate(const void* data, std::size_t bytes);
  // After locate() has returned true: the address of `bytes` of the rank's data from `offset` on. Throws
  // std::runtime_error if the rank has less registered memory there; the backend then ends the group.
  std::byte* at(int rank, std::size_t offset, std::size_t bytes) const {
    return own_.at(rank, offsets_[static_cast<std::size_t>(rank)], offset, bytes);
  }

  // See Backend::peer_addresses.
  std::vector<std::byte*> peer_addresses(const void* data, std::size_t bytes) const;

  // Collective: makes a segment of `bytes_each` for each rank, with one round in which the ranks publish whether they
  // have it. If a rank of this node failed, returns null and writes the reason to `failure`.
  std::shared_ptr<SharedSegment> share(std::size_t bytes_each, std::chrono::milliseconds timeout, std::string& failure);
  Buffer add(std::shared_ptr<SharedSegment> segment, std::size_t bytes) {
    return RegisteredMemory::add(memory_, std::move(segment), bytes);
  }

  // Makes the windows for unregistered memory. Collective on first use. Ends the group if a rank cannot map them.
  void need_windows(std::size_t count, std::size_t bytes, std::chrono::milliseconds timeout);
  std::byte* window(int rank, std::size_t index) const {
    return windows_->data() + (static_cast<std::size_t>(rank) * window_count_ + index % window_count_) * window_bytes_;
  }

 private:
  SharedMemoryProvider& provider_;
  std::shared_ptr<SharedSegment> control_;
  ControlLayout layout_;
  int local_rank_;
  FailureDetector& detector_;
  Rounds rounds_;
  std::shared_ptr<RegisteredMemory> memory_;
  RegisteredMemory::Found own_;         // the result of locate()
  std::vector<std::uint64_t> offsets_;  // by rank: offset of its data in its part of the segment
  std::shared_ptr<SharedSegment> windows_;
  std::size_t window_count_ = 0, window_bytes_ = 0;
};

}  // namespace lockstep::host

#include "src/comm/host/shm/node_buffers.h"

#include <fmt/format.h>

#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep::host {

NodeBuffers::NodeBuffers(SharedMemoryProvider& provider, std::shared_ptr<SharedSegment> control, int local_rank,
                         int ranks, FailureDetector& detector)
    : provider_(provider),
      control_(std::move(control)),
      layout_(control_->data(), ranks),
      local_rank_(local_rank),
      detector_(detector),
      rounds_(layout_, local_rank, detector),
      memory_(std::make_shared<RegisteredMemory>(local_rank)),
      offsets_(static_cast<std::size_t>(ranks)) {}

bool NodeBuffers::locate(const void* data, std::size_t bytes) {
  static_assert(sizeof(Location) <= kHeaderPayload);
  own_ = memory_->find(data, bytes);
  const Location mine = own_.location;
  std::memcpy(rounds_.payload(), &mine, sizeof mine);
  rounds_.publish();
  bool in_one_segment = mine.segment != 0;
  for (int rank = 0; rank < ranks(); ++rank) {
    Location theirs = mine;
    if (rank != local_rank_) std::memcpy(&theirs, rounds_.await(rank).payload, sizeof theirs);
    if (theirs.segment != mine.segment) in_one_segment = false;
    offsets_[static_cast<std::size_t>(rank)] = theirs.offset;
  }
  return in_one_segment;
}

std::vector<std::byte*> NodeBuffers::peer_addresses(const void* data, std::size_t bytes) const {
  const RegisteredMemory::Found found = memory_->find(data, bytes);
  std::vector<std::byte*> addresses;
  if (found.location.segment == 0) return addresses;
  for (int rank = 0; rank < ranks(); ++rank) addresses.push_back(found.at(rank, found.location.offset, 0, bytes));
  return addresses;
}

std::shared_ptr<SharedSegment> NodeBuffers::share(std::size_t bytes_each, std::chrono::milliseconds timeout,
                                                  std::string& failure) {
  std::shared_ptr<SharedSegment> segment;
  std::string own_failure;
  try {
    segment = provider_.share(bytes_each * static_cast<std::size_t>(ranks()), timeout);
  } catch (const Error& error) {
    own_failure = error.what();
  }
  rounds_.payload()[0] = std::byte{own_failure.empty() ? std::uint8_t{0} : std::uint8_t{1}};
  rounds_.publish();
  std::string failed_ranks;
  for (int rank = 0; rank < ranks(); ++rank) {
    const bool failed = rank == local_rank_ ? !own_failure.empty() : rounds_.await(rank).payload[0] != std::byte{0};
    if (failed) failed_ranks += fmt::format("{}{}", failed_ranks.empty() ? "" : ", ", detector_.rank_of_local(rank));
  }
  if (failed_ranks.empty()) return segment;
  failure = fmt::format("shared memory could not be mapped on rank {}{}", failed_ranks,
                        own_failure.empty() ? "; see its own message" : ": " + own_failure);
  return nullptr;
}

void NodeBuffers::need_windows(std::size_t count, std::size_t bytes, std::chrono::milliseconds timeout) {
  if (windows_) return;
  std::string failure;
  windows_ = share(count * bytes, timeout, failure);
  if (!windows_) {
    detector_.declare(GroupErrorKind::kFailed,
                      fmt::format("{}; it is needed for messages in memory that is not registered", failure));
    detector_.throw_group_error(rounds_.doing());
  }
  window_count_ = count;
  window_bytes_ = bytes;
}

}  // namespace lockstep::host

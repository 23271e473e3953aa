#include "src/comm/ring/node_buffers.h"

#include <fmt/format.h>

#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep::ring {

NodeBuffers::NodeBuffers(LocalFabric& fabric, std::shared_ptr<SharedSegment> control, int local_rank, int ranks, GroupWatch& watch)
    : fabric_(fabric),
      control_(std::move(control)),
      layout_(control_->data(), ranks),
      local_rank_(local_rank),
      watch_(watch),
      rounds_(layout_, local_rank, watch),
      memory_(std::make_shared<RegisteredMemory>(local_rank)),
      located_(static_cast<std::size_t>(ranks)) {}

bool NodeBuffers::locate(const void* data, std::size_t bytes) {
  const RegisteredMemory::Found mine = memory_->find(data, bytes);
  std::memcpy(rounds_.payload(), &mine.location, sizeof mine.location);
  rounds_.publish();
  bool in_one_segment = mine.location.segment != 0;
  for (int rank = 0; rank < ranks(); ++rank) {
    Location theirs = mine.location;
    if (rank != local_rank_) std::memcpy(&theirs, rounds_.await(rank).payload, sizeof theirs);
    if (theirs.segment != mine.location.segment) in_one_segment = false;
    located_[static_cast<std::size_t>(rank)] = in_one_segment ? mine.at(rank, theirs.offset, 0, bytes) : nullptr;
  }
  return in_one_segment;
}

std::shared_ptr<SharedSegment> NodeBuffers::share(std::size_t bytes_each, std::chrono::milliseconds timeout, std::string& failure) {
  std::shared_ptr<SharedSegment> segment;
  std::string own_failure;
  try {
    segment = fabric_.share(bytes_each * static_cast<std::size_t>(ranks()), timeout);
  } catch (const Error& error) {
    own_failure = error.what();
  }
  rounds_.payload()[0] = std::byte{own_failure.empty() ? std::uint8_t{0} : std::uint8_t{1}};
  rounds_.publish();
  std::string failed_ranks;
  for (int rank = 0; rank < ranks(); ++rank) {
    const bool failed = rank == local_rank_ ? !own_failure.empty() : rounds_.await(rank).payload[0] != std::byte{0};
    if (failed) failed_ranks += fmt::format("{}{}", failed_ranks.empty() ? "" : ", ", watch_.rank_of_local(rank));
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
    watch_.declare(VerdictKind::kFailed, fmt::format("{}; it is needed for messages in memory that is not registered", failure));
    watch_.throw_verdict(rounds_.doing());
  }
  window_count_ = count;
  window_bytes_ = bytes;
}

}  // namespace lockstep::ring

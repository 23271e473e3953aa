// broadcast and all_gather over shared memory. See shm_transport.h.
#include <algorithm>
#include <cstring>

#include "src/comm/ring/shm_transport.h"

namespace lockstep::ring {

void ShmTransport::broadcast(const Operation& operation) {
  const std::size_t bytes = operation.bytes();
  const int root = operation.signature.root;
  const bool is_root = root == place_.rank;
  if (is_root && operation.send != operation.receive && bytes != 0) std::memcpy(operation.receive, operation.send, bytes);
  if (ranks() == 1) return;
  if (bytes <= kFlatBytes) {
    const std::uint64_t round = rounds_.next();
    const auto slot = [&](int rank) { return bytes <= kLinePayload ? layout_.line(rank, round).payload : layout_.slot(rank, round); };
    if (is_root && bytes != 0) std::memcpy(slot(root), operation.receive, bytes);
    rounds_.barrier();
    if (!is_root && bytes != 0) read_from_peer(operation.receive, slot(root), bytes);
    return;
  }
  const Places places = locate(operation.receive, bytes);
  if (!places.direct) return broadcast_by_tiles(operation);
  if (!is_root) read_from_peer(operation.receive, places.mine.at(root, offsets_[static_cast<std::size_t>(root)]), bytes);
  rounds_.barrier();
}

// The root fills a tile while the others read the one before.
void ShmTransport::broadcast_by_tiles(const Operation& operation) {
  const std::size_t bytes = operation.bytes();
  const int root = operation.signature.root;
  auto* const data = static_cast<std::byte*>(operation.receive);
  std::uint64_t step = 0;
  for (std::size_t at = 0; at < bytes; at += kTileBytes, ++step) {
    const std::size_t length = std::min(kTileBytes, bytes - at);
    if (root == place_.rank) std::memcpy(layout_.tile(root, step), data + at, length);
    rounds_.barrier();
    if (root != place_.rank) read_from_peer(data + at, layout_.tile(root, step), length);
  }
}

void ShmTransport::all_gather(const Operation& operation) {
  const std::size_t bytes = operation.bytes();
  auto* const receive = static_cast<std::byte*>(operation.receive);
  const auto part_of = [&](int rank) { return receive + static_cast<std::size_t>(rank) * bytes; };
  if (bytes != 0 && operation.send != part_of(place_.rank)) std::memmove(part_of(place_.rank), operation.send, bytes);
  if (ranks() == 1) return;
  if (bytes <= kFlatBytes) {
    const std::uint64_t round = rounds_.next();
    const auto slot = [&](int rank) { return bytes <= kLinePayload ? layout_.line(rank, round).payload : layout_.slot(rank, round); };
    if (bytes != 0) std::memcpy(slot(place_.rank), part_of(place_.rank), bytes);
    rounds_.barrier();
    for (int rank = 0; rank < ranks(); ++rank)
      if (rank != place_.rank && bytes != 0) read_from_peer(part_of(rank), slot(rank), bytes);
    return;
  }
  const Places places = locate(part_of(place_.rank), bytes);
  if (!places.direct) return all_gather_by_tiles(operation);
  for (int rank = 0; rank < ranks(); ++rank)
    if (rank != place_.rank) read_from_peer(part_of(rank), places.mine.at(rank, offsets_[static_cast<std::size_t>(rank)]), bytes);
  rounds_.barrier();
}

void ShmTransport::all_gather_by_tiles(const Operation& operation) {
  const std::size_t bytes = operation.bytes();
  auto* const receive = static_cast<std::byte*>(operation.receive);
  const auto part_of = [&](int rank) { return receive + static_cast<std::size_t>(rank) * bytes; };
  std::uint64_t step = 0;
  for (std::size_t at = 0; at < bytes; at += kTileBytes, ++step) {
    const std::size_t length = std::min(kTileBytes, bytes - at);
    std::memcpy(layout_.tile(place_.rank, step), part_of(place_.rank) + at, length);
    rounds_.barrier();
    for (int rank = 0; rank < ranks(); ++rank)
      if (rank != place_.rank) read_from_peer(part_of(rank) + at, layout_.tile(rank, step), length);
  }
}

}  // namespace lockstep::ring

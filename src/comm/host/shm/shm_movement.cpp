// Collectives that move data and compute nothing: every rank offers a buffer and copies the parts that it needs from
// its peers' offers. See shm_transport.h.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "src/comm/host/shm/shm_transport.h"
#include "src/comm/operation/parts.h"

namespace lockstep::host {

namespace {

const std::byte* bytes_at(const void* data, std::size_t offset) { return static_cast<const std::byte*>(data) + offset; }
std::byte* bytes_at(void* data, std::size_t offset) { return static_cast<std::byte*>(data) + offset; }

// Copies a rank's own part, unless the call is in place.
void keep_own(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes != 0 && to != from) std::memmove(to, from, bytes);
}

}  // namespace

void ShmTransport::move(const Offer& offer) {
  if (ranks() == 1) return;
  if (offer.largest <= tuning_.flat_bytes) return move_small(offer);
  if (!buffers_.locate(offer.anchor, offer.anchor_bytes)) return move_by_tiles(offer);
  for (const Pull& pull : pulls_) read_from_peer(pull.to, buffers_.at(pull.peer, pull.offset, pull.bytes), pull.bytes);
  rounds_.barrier();
}

void ShmTransport::move_small(const Offer& offer) {
  const std::uint64_t round = rounds_.next();
  const auto slot = [&](int rank) { return small_slot(rank, round, offer.largest); };
  if (offer.bytes != 0) std::memcpy(slot(place_.rank), offer.data, offer.bytes);
  rounds_.barrier();
  for (const Pull& pull : pulls_)
    if (pull.bytes != 0) read_from_peer(pull.to, slot(pull.peer) + pull.offset, pull.bytes);
}

// An offer passes through its rank's tiles piece by piece; each rank that needs data of that piece copies it. A tile is
// filled again three steps later, two rounds after it was read.
void ShmTransport::move_by_tiles(const Offer& offer) {
  const std::size_t tile = tuning_.tile_bytes;
  std::uint64_t step = 0;
  for (std::size_t begin = 0; begin < offer.largest; begin += tile, ++step) {
    if (begin < offer.bytes)
      std::memcpy(layout_.tile(place_.rank, step), offer.data + begin, std::min(tile, offer.bytes - begin));
    rounds_.barrier();
    for (const Pull& pull : pulls_) {
      const std::size_t from = std::max(begin, pull.offset), to = std::min(begin + tile, pull.offset + pull.bytes);
      if (from < to)
        read_from_peer(pull.to + (from - pull.offset), layout_.tile(pull.peer, step) + (from - begin), to - from);
    }
  }
}

void ShmTransport::broadcast(const Operation& operation) {
  const std::size_t bytes = operation.bytes();
  const int root = operation.signature.root;
  const bool is_root = root == place_.rank;
  auto* const data = bytes_at(operation.receive, 0);
  if (is_root) keep_own(data, bytes_at(operation.send, 0), bytes);
  pulls_.clear();
  if (!is_root) pulls_.push_back({root, 0, bytes, data});
  move({data, is_root ? bytes : 0, data, bytes, bytes});
}

void ShmTransport::all_gather(const Operation& operation) {
  const std::size_t bytes = operation.bytes();
  pulls_.clear();
  for (int rank = 0; rank < ranks(); ++rank) {
    std::byte* part = bytes_at(operation.receive, static_cast<std::size_t>(rank) * bytes);
    if (rank == place_.rank)
      keep_own(part, bytes_at(operation.send, 0), bytes);
    else
      pulls_.push_back({rank, 0, bytes, part});
  }
  const auto* mine = bytes_at(operation.receive, static_cast<std::size_t>(place_.rank) * bytes);
  move({mine, bytes, mine, bytes, bytes});
}

void ShmTransport::gather(const Operation& operation) {
  const std::size_t bytes = operation.bytes();
  pulls_.clear();
  if (operation.signature.root == place_.rank)
    for (int rank = 0; rank < ranks(); ++rank) {
      std::byte* part = bytes_at(operation.receive, static_cast<std::size_t>(rank) * bytes);
      if (rank == place_.rank)
        keep_own(part, bytes_at(operation.send, 0), bytes);
      else
        pulls_.push_back({rank, 0, bytes, part});
    }
  move({bytes_at(operation.send, 0), bytes, operation.send, bytes, bytes});
}

void ShmTransport::scatter(const Operation& operation) {
  const std::size_t bytes = operation.bytes(), all = bytes * static_cast<std::size_t>(ranks());
  const int root = operation.signature.root;
  const std::size_t offset = static_cast<std::size_t>(place_.rank) * bytes;
  pulls_.clear();
  if (root == place_.rank) {
    keep_own(bytes_at(operation.receive, 0), bytes_at(operation.send, offset), bytes);
    return move({bytes_at(operation.send, 0), all, operation.send, all, all});
  }
  pulls_.push_back({root, offset, bytes, bytes_at(operation.receive, 0)});
  move({nullptr, 0, operation.receive, bytes, all});
}

void ShmTransport::all_to_all(const Operation& operation) {
  const std::size_t bytes = operation.bytes(), all = bytes * static_cast<std::size_t>(ranks());
  const std::size_t own = static_cast<std::size_t>(place_.rank) * bytes;
  const auto* send = bytes_at(operation.send, 0);
  if (operation.send == operation.receive && all != 0) {  // peers still read the data that would be overwritten
    scratch_.assign(send, send + all);
    send = scratch_.data();
  }
  pulls_.clear();
  for (int rank = 0; rank < ranks(); ++rank) {
    std::byte* part = bytes_at(operation.receive, static_cast<std::size_t>(rank) * bytes);
    if (rank == place_.rank)
      keep_own(part, send + own, bytes);
    else
      pulls_.push_back({rank, own, bytes, part});
  }
  move({send, all, send, all, all});
}

void ShmTransport::all_gather_v(const Operation& operation) {
  const std::size_t element = size_of(operation.signature.dtype);
  const auto& counts = operation.layout->receive_counts;
  const std::size_t largest = *std::max_element(counts.begin(), counts.end()) * element;
  const std::byte* mine = nullptr;
  std::size_t own = 0, at = 0;
  pulls_.clear();
  for (int rank = 0; rank < ranks(); ++rank) {
    const std::size_t bytes = counts[static_cast<std::size_t>(rank)] * element;
    std::byte* part = bytes_at(operation.receive, at);
    at += bytes;
    if (rank != place_.rank) {
      pulls_.push_back({rank, 0, bytes, part});
      continue;
    }
    keep_own(part, bytes_at(operation.send, 0), bytes);
    mine = part;
    own = bytes;
  }
  move({mine, own, mine, own, largest});
}

// First every rank reads how much all ranks send to each other; the rest is as in all_to_all.
void ShmTransport::all_to_all_v(const Operation& operation) {
  const auto n = static_cast<std::size_t>(ranks()), me = static_cast<std::size_t>(place_.rank);
  const std::size_t element = size_of(operation.signature.dtype);
  const Layout& layout = *operation.layout;
  AlltoallvCounts counts(n);
  counts.say(me, layout.send_counts, layout.receive_counts);
  pulls_.clear();
  for (std::size_t rank = 0; rank < n; ++rank)
    if (rank != me)
      pulls_.push_back({static_cast<int>(rank), 0, counts.row_bytes(), reinterpret_cast<std::byte*>(counts.row(rank))});
  const auto* row = reinterpret_cast<const std::byte*>(counts.row(me));
  move({row, counts.row_bytes(), row, counts.row_bytes(), counts.row_bytes()});
  const std::string disagreement = counts.disagreement();
  if (!disagreement.empty()) {
    detector_.declare(GroupErrorKind::kMismatch, rounds_.doing() + ": " + disagreement);
    detector_.throw_group_error(rounds_.doing());
  }
  pulls_.clear();
  std::size_t at = 0;
  for (std::size_t rank = 0; rank < n; ++rank) {
    const std::size_t bytes = layout.receive_counts[rank] * element, offset = counts.before(rank, me) * element;
    std::byte* part = bytes_at(operation.receive, at);
    at += bytes;
    if (rank == me)
      keep_own(part, bytes_at(operation.send, offset), bytes);
    else
      pulls_.push_back({static_cast<int>(rank), offset, bytes, part});
  }
  const std::size_t own = counts.before(me, n) * element;
  move({bytes_at(operation.send, 0), own, operation.send, own, counts.largest_row() * element});
}

}  // namespace lockstep::host

// Collectives over TCP that move data and compute nothing. See tcp_transport.h.
#include <algorithm>
#include <cstring>

#include "src/comm/host/tcp/tcp_transport.h"
#include "src/comm/operation/parts.h"

namespace lockstep::host {

namespace {

// Copies the rank's own part, unless the call is in place.
void keep_own(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0 && to != from) std::memmove(to, from, bytes);
}

// Part `rank` of a buffer of parts. The exchange never writes to memory that it sends.
std::byte* part_of(const void* data, int rank, std::size_t bytes) {
  return static_cast<std::byte*>(const_cast<void*>(data)) + static_cast<std::size_t>(rank) * bytes;
}

}  // namespace

void TcpTransport::broadcast(const Operation& operation) {
  const std::size_t bytes = operation.bytes();
  auto* data = static_cast<std::byte*>(operation.receive);
  const int root = operation.signature.root;
  if (root == place_.rank) {
    keep_own(data, operation.send, bytes);
    for (int peer = 0; peer < ranks(); ++peer)
      if (peer != root) exchange_.send(peer, data, bytes);
  } else {
    exchange_.receive(root, data, bytes);
  }
  run_exchange();
}

void TcpTransport::all_gather(const Operation& operation) {
  const std::size_t bytes = operation.bytes();
  std::byte* mine = part_of(operation.receive, place_.rank, bytes);
  keep_own(mine, operation.send, bytes);
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == place_.rank) continue;
    exchange_.send(peer, mine, bytes);
    exchange_.receive(peer, part_of(operation.receive, peer, bytes), bytes);
  }
  run_exchange();
}

void TcpTransport::gather(const Operation& operation) {
  const std::size_t bytes = operation.bytes();
  const int root = operation.signature.root;
  if (root == place_.rank) {
    keep_own(part_of(operation.receive, root, bytes), operation.send, bytes);
    for (int peer = 0; peer < ranks(); ++peer)
      if (peer != root) exchange_.receive(peer, part_of(operation.receive, peer, bytes), bytes);
  } else {
    exchange_.send(root, part_of(operation.send, 0, 0), bytes);
  }
  run_exchange();
}

void TcpTransport::scatter(const Operation& operation) {
  const std::size_t bytes = operation.bytes();
  const int root = operation.signature.root;
  if (root == place_.rank) {
    keep_own(operation.receive, part_of(operation.send, root, bytes), bytes);
    for (int peer = 0; peer < ranks(); ++peer)
      if (peer != root) exchange_.send(peer, part_of(operation.send, peer, bytes), bytes);
  } else {
    exchange_.receive(root, part_of(operation.receive, 0, 0), bytes);
  }
  run_exchange();
}

void TcpTransport::all_to_all(const Operation& operation) {
  const std::size_t bytes = operation.bytes(), all = bytes * static_cast<std::size_t>(ranks());
  const void* send = operation.send;
  if (operation.send == operation.receive && all != 0) {  // received data would overwrite data that has not left
    scratch_.assign(part_of(send, 0, 0), part_of(send, 0, 0) + all);
    send = scratch_.data();
  }
  keep_own(part_of(operation.receive, place_.rank, bytes), part_of(send, place_.rank, bytes), bytes);
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == place_.rank) continue;
    exchange_.send(peer, part_of(send, peer, bytes), bytes);
    exchange_.receive(peer, part_of(operation.receive, peer, bytes), bytes);
  }
  run_exchange();
}

void TcpTransport::all_gather_v(const Operation& operation) {
  const std::size_t element = size_of(operation.signature.dtype);
  const auto& counts = operation.layout->receive_counts;
  std::vector<std::byte*> parts;
  auto* at = static_cast<std::byte*>(operation.receive);
  for (const std::size_t count : counts) parts.push_back(std::exchange(at, at + count * element));
  const auto bytes_of = [&](int rank) { return counts[static_cast<std::size_t>(rank)] * element; };
  const std::byte* mine = parts[static_cast<std::size_t>(place_.rank)];
  keep_own(parts[static_cast<std::size_t>(place_.rank)], operation.send, bytes_of(place_.rank));
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == place_.rank) continue;
    exchange_.send(peer, mine, bytes_of(place_.rank));
    exchange_.receive(peer, parts[static_cast<std::size_t>(peer)], bytes_of(peer));
  }
  run_exchange();
}

// First every rank sends each other one the length of its part, then the parts travel.
void TcpTransport::all_to_all_v(const Operation& operation) {
  const auto n = static_cast<std::size_t>(ranks()), me = static_cast<std::size_t>(place_.rank);
  const std::size_t element = size_of(operation.signature.dtype);
  const Layout& layout = *operation.layout;
  AlltoallvCounts counts(n);
  counts.say(me, layout.send_counts, layout.receive_counts);
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == place_.rank) continue;
    exchange_.send(peer, reinterpret_cast<const std::byte*>(counts.row(me)), counts.row_bytes());
    exchange_.receive(peer, reinterpret_cast<std::byte*>(counts.row(static_cast<std::size_t>(peer))),
                      counts.row_bytes());
  }
  run_exchange();
  const std::string disagreement = counts.disagreement();
  if (!disagreement.empty())
    ends_.end(GroupErrorKind::kMismatch, describe(operation.signature, operation.purpose) + ": " + disagreement);
  auto* to = static_cast<std::byte*>(operation.receive);
  for (int peer = 0; peer < ranks(); ++peer) {
    const auto p = static_cast<std::size_t>(peer);
    const std::byte* from = static_cast<const std::byte*>(operation.send) + counts.before(me, p) * element;
    const std::size_t received = layout.receive_counts[p] * element;
    if (p == me) {
      keep_own(to, from, received);
    } else {
      exchange_.send(peer, from, layout.send_counts[p] * element);
      exchange_.receive(peer, to, received);
    }
    to += received;
  }
  run_exchange();
}

}  // namespace lockstep::host

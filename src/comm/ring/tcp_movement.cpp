// Collectives over TCP that move data and compute nothing. See tcp_transport.h.
#include <cstring>

#include "src/comm/ring/tcp_transport.h"

namespace lockstep::ring {

namespace {

// The rank's own part, which is there already when it works in place.
void keep_own(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0 && to != from) std::memmove(to, from, bytes);
}

// Part `rank` of a buffer of parts. The exchange never writes what it sends.
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
  if (operation.send == operation.receive && all != 0) {  // what arrives would overwrite what has not left
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

}  // namespace lockstep::ring

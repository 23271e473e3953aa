// The collectives over TCP. See tcp_transport.h.
#include <algorithm>
#include <cstring>

#include "src/comm/ring/reduce_kernels.h"
#include "src/comm/ring/tcp_transport.h"

namespace lockstep::ring {

namespace {

constexpr std::size_t kSmallBytes = 8 * 1024;    // up to here latency counts, not bytes
constexpr std::size_t kSliceBytes = 256 * 1024;  // of a block: its values and sums stay in cache

std::size_t elements_per_block(DType dtype, int ranks) { return static_cast<std::size_t>(ranks) * kSliceBytes / size_of(dtype); }

// One block of a message and how it is divided.
struct Block {
  Block(const Operation& operation, std::size_t index, int ranks)
      : dtype(operation.signature.dtype), ranks(ranks), element(size_of(dtype)) {
    const std::size_t per_block = elements_per_block(dtype, ranks), begin = index * per_block;
    count = std::min(per_block, operation.signature.count - begin);
    data = static_cast<std::byte*>(operation.receive) + begin * element;
  }
  Slice slice(int rank) const { return slice_of(count, dtype, rank, ranks); }
  std::byte* at(int rank) const { return data + slice(rank).begin * element; }
  std::size_t bytes(int rank) const { return slice(rank).count() * element; }

  DType dtype;
  int ranks;
  std::size_t element;
  std::size_t count = 0;
  std::byte* data = nullptr;
};

}  // namespace

std::byte* TcpTransport::staging(int rank, std::size_t bytes_each) {
  const std::size_t wanted = bytes_each * static_cast<std::size_t>(ranks());
  if (staging_.size() < wanted) staging_.resize(wanted);
  return staging_.data() + static_cast<std::size_t>(rank) * bytes_each;
}

void TcpTransport::all_reduce(const Operation& operation) {
  const std::size_t bytes = operation.bytes();
  if (operation.send != operation.receive && bytes != 0) std::memcpy(operation.receive, operation.send, bytes);
  if (ranks() == 1) return;
  if (bytes <= kSmallBytes) return all_reduce_small(operation);
  const std::size_t per_block = elements_per_block(operation.signature.dtype, ranks());
  const std::size_t blocks = (operation.signature.count + per_block - 1) / per_block;
  staging(0, kSliceBytes);
  for (std::size_t block = 0; block <= blocks; ++block) {
    if (block > 0) plan_results(operation, block - 1);
    if (block < blocks) plan_values(operation, block);
    run_exchange();
    if (block < blocks) reduce_block(operation, block);
  }
}

void TcpTransport::all_reduce_small(const Operation& operation) {
  const std::size_t bytes = operation.bytes();
  auto* data = static_cast<std::byte*>(operation.receive);
  staging(0, kSmallBytes);
  for (int peer = 0; peer < ranks(); ++peer) {
    in_[static_cast<std::size_t>(peer)] = peer == place_.rank ? data : staging(peer, kSmallBytes);
    if (peer == place_.rank) continue;
    exchange_.send(peer, data, bytes);
    exchange_.receive(peer, staging(peer, kSmallBytes), bytes);
  }
  run_exchange();
  const Signature& call = operation.signature;
  reduce({call.dtype, call.op, ranks(), 1, in_.data(), &data, call.count});
}

void TcpTransport::plan_results(const Operation& operation, std::size_t index) {
  const Block block(operation, index, ranks());
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == place_.rank) continue;
    exchange_.send(peer, block.at(place_.rank), block.bytes(place_.rank));
    exchange_.receive(peer, block.at(peer), block.bytes(peer));
  }
}

void TcpTransport::plan_values(const Operation& operation, std::size_t index) {
  const Block block(operation, index, ranks());
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == place_.rank) continue;
    exchange_.send(peer, block.at(peer), block.bytes(peer));
    exchange_.receive(peer, staging(peer, kSliceBytes), block.bytes(place_.rank));
  }
}

void TcpTransport::reduce_block(const Operation& operation, std::size_t index) {
  const Block block(operation, index, ranks());
  std::byte* result = block.at(place_.rank);
  for (int peer = 0; peer < ranks(); ++peer)
    in_[static_cast<std::size_t>(peer)] = peer == place_.rank ? result : staging(peer, kSliceBytes);
  const Signature& call = operation.signature;
  reduce({call.dtype, call.op, ranks(), 1, in_.data(), &result, block.slice(place_.rank).count()});
}

void TcpTransport::broadcast(const Operation& operation) {
  const std::size_t bytes = operation.bytes();
  auto* data = static_cast<std::byte*>(operation.receive);
  const int root = operation.signature.root;
  if (root == place_.rank) {
    if (operation.send != data && bytes != 0) std::memcpy(data, operation.send, bytes);
    for (int peer = 0; peer < ranks(); ++peer)
      if (peer != root) exchange_.send(peer, data, bytes);
  } else {
    exchange_.receive(root, data, bytes);
  }
  run_exchange();
}

void TcpTransport::all_gather(const Operation& operation) {
  const std::size_t bytes = operation.bytes();
  auto* receive = static_cast<std::byte*>(operation.receive);
  const auto part_of = [&](int rank) { return receive + static_cast<std::size_t>(rank) * bytes; };
  std::byte* mine = part_of(place_.rank);
  if (bytes != 0 && operation.send != mine) std::memmove(mine, operation.send, bytes);
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == place_.rank) continue;
    exchange_.send(peer, mine, bytes);
    exchange_.receive(peer, part_of(peer), bytes);
  }
  run_exchange();
}

}  // namespace lockstep::ring

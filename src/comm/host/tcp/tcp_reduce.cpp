// Reductions over TCP, block by block.
//
// Terms: n ranks with a message of B bytes each. Slice: the 1/n of a block that one rank, its owner, reduces. Block: n
// slices of at most kSliceBytes. Exchange: pieces to and from all peers at once, until all have arrived
// (tcp_exchange.h).
//
//   call            exchanges          bytes that leave a rank
//   all_reduce      blocks + 1         2 (n-1)/n B: its values of the peers' slices, then its own slice's sums to each
//     up to 8 KiB   1                  (n-1) B: its values to every peer; all ranks compute the complete result
//   reduce          blocks + 1         (n-1)/n B of values, and B/n of sums to the root
//   reduce_scatter  B / kSliceBytes    (n-1) B, where B is one rank's part
// The sums of a block travel in the same exchange as the values of the next block.
#include <algorithm>
#include <cstring>

#include "src/comm/host/reduce/reduce_kernels.h"
#include "src/comm/host/tcp/tcp_transport.h"

namespace lockstep::host {

namespace {

constexpr std::size_t kSmallBytes = 8 * 1024;    // up to this size latency counts, not bandwidth
constexpr std::size_t kSliceBytes = 512 * 1024;  // of a block, at most: its values and sums stay in cache

std::size_t elements_per_block(DType dtype, int ranks) {
  return static_cast<std::size_t>(ranks) * kSliceBytes / size_of(dtype);
}

// One block of a message and its division.
struct Block {
  Block(const Operation& operation, std::size_t index, int ranks) : Block(operation, operation.receive, index, ranks) {}
  Block(const Operation& operation, void* message, std::size_t index, int ranks)
      : dtype(operation.signature.dtype), ranks(ranks), element(size_of(dtype)) {
    const std::size_t per_block = elements_per_block(dtype, ranks), begin = index * per_block;
    count = std::min(per_block, operation.signature.count - begin);
    data = static_cast<std::byte*>(message) + begin * element;
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
  reduce({call.dtype, call.op, ranks(), 1, in_.data(), &data, call.count, order_});
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
  reduce({call.dtype, call.op, ranks(), 1, in_.data(), &result, block.slice(place_.rank).count(), order_});
}

// A slice's sum goes to the root while the next block's values travel; two buffers of sums alternate.
void TcpTransport::reduce_to_root(const Operation& operation) {
  const Signature& call = operation.signature;
  const std::size_t bytes = operation.bytes();
  const bool is_root = call.root == place_.rank;
  if (is_root && operation.send != operation.receive && bytes != 0)
    std::memcpy(operation.receive, operation.send, bytes);
  if (ranks() == 1) return;
  // Only the root's buffer is written.
  void* const data = is_root ? operation.receive : const_cast<void*>(operation.send);
  const std::size_t per_block = elements_per_block(call.dtype, ranks());
  const std::size_t blocks = (call.count + per_block - 1) / per_block;
  staging(0, kSliceBytes);
  scratch_.resize(std::max(scratch_.size(), 2 * kSliceBytes));
  const auto sums_of = [&](std::size_t block) { return scratch_.data() + block % 2 * kSliceBytes; };
  for (std::size_t block = 0; block <= blocks; ++block) {
    if (block > 0) {
      const Block done(operation, data, block - 1, ranks());
      if (!is_root) exchange_.send(call.root, sums_of(block - 1), done.bytes(place_.rank));
      for (int peer = 0; is_root && peer < ranks(); ++peer)
        if (peer != place_.rank) exchange_.receive(peer, done.at(peer), done.bytes(peer));
    }
    if (block == blocks) return run_exchange();
    const Block now(operation, data, block, ranks());
    for (int peer = 0; peer < ranks(); ++peer) {
      in_[static_cast<std::size_t>(peer)] = peer == place_.rank ? now.at(peer) : staging(peer, kSliceBytes);
      if (peer == place_.rank) continue;
      exchange_.send(peer, now.at(peer), now.bytes(peer));
      exchange_.receive(peer, staging(peer, kSliceBytes), now.bytes(place_.rank));
    }
    run_exchange();
    std::byte* const sums = is_root ? now.at(place_.rank) : sums_of(block);
    reduce({call.dtype, call.op, ranks(), 1, in_.data(), &sums, now.slice(place_.rank).count(), order_});
  }
}

void TcpTransport::reduce_scatter(const Operation& operation) {
  const Signature& call = operation.signature;
  const std::size_t bytes = operation.bytes(), element = size_of(call.dtype);
  auto* const send = static_cast<std::byte*>(const_cast<void*>(operation.send));
  auto* const result = static_cast<std::byte*>(operation.receive);
  const auto me = static_cast<std::size_t>(place_.rank);
  staging(0, kSliceBytes);
  for (std::size_t begin = 0; begin == 0 || begin < bytes; begin += kSliceBytes) {
    const std::size_t length = std::min(kSliceBytes, bytes - begin);
    for (int peer = 0; peer < ranks(); ++peer) {
      const auto p = static_cast<std::size_t>(peer);
      in_[p] = p == me ? send + me * bytes + begin : staging(peer, kSliceBytes);
      if (p == me) continue;
      exchange_.send(peer, send + p * bytes + begin, length);
      exchange_.receive(peer, staging(peer, kSliceBytes), length);
    }
    run_exchange();
    std::byte* const sums = result + begin;
    reduce({call.dtype, call.op, ranks(), 1, in_.data(), &sums, length / element, order_});
  }
}

}  // namespace lockstep::host

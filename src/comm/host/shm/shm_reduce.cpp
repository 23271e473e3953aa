// reduce and reduce_scatter over shared memory. See shm_transport.h.
#include <algorithm>
#include <cstring>

#include "lockstep/core/error.h"
#include "src/comm/host/reduce/reduce_kernels.h"
#include "src/comm/host/shm/shm_transport.h"

namespace lockstep::host {

// The root works on its result's buffer; the other ranks' buffers are unchanged.
void ShmTransport::reduce_to_root(const Operation& operation) {
  const Signature& call = operation.signature;
  const std::size_t bytes = operation.bytes();
  const bool is_root = call.root == place_.rank;
  if (is_root && operation.send != operation.receive && bytes != 0)
    std::memcpy(operation.receive, operation.send, bytes);
  if (ranks() == 1) return;
  const auto* data = static_cast<const std::byte*>(is_root ? operation.receive : operation.send);
  if (bytes <= tuning_.flat_bytes) {
    const std::uint64_t round = rounds_.next();
    if (bytes != 0) std::memcpy(small_slot(place_.rank, round, bytes), data, bytes);
    rounds_.barrier();
    if (!is_root) return;
    for (int rank = 0; rank < ranks(); ++rank) in_[static_cast<std::size_t>(rank)] = small_slot(rank, round, bytes);
    out_[0] = static_cast<std::byte*>(operation.receive);
    reduce(call, 1, call.count);
    return count_read(bytes * static_cast<std::size_t>(ranks() - 1));
  }
  if (!buffers_.locate(data, bytes)) return reduce_by_tiles(operation, data);
  const Slice slice = slice_of(call.count, call.dtype, place_.rank, ranks());
  const std::size_t element = size_of(call.dtype);
  for (int rank = 0; rank < ranks(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    std::byte* at = buffers_.at(rank, slice.begin * element, slice.count() * element);
    in_[r] = at;
    if (rank == call.root) out_[0] = at;
  }
  reduce(call, 1, slice.count());
  count_read(slice.count() * element * static_cast<std::size_t>(ranks() - 1));
  rounds_.barrier();
}

// Like all_reduce_by_tiles(), but every slice's result goes only into the root's tile, where the root's own values
// were.
void ShmTransport::reduce_by_tiles(const Operation& operation, const std::byte* data) {
  const Signature& call = operation.signature;
  const std::size_t element = size_of(call.dtype), per_step = tuning_.tile_bytes / element;
  const std::size_t steps = (call.count + per_step - 1) / per_step;
  const bool is_root = call.root == place_.rank;
  auto* const result = static_cast<std::byte*>(operation.receive);
  const auto count_of = [&](std::size_t step) { return std::min(per_step, call.count - step * per_step); };
  for (std::size_t step = 0; step <= steps; ++step) {
    if (step < steps) fill_tile(data + step * tuning_.tile_bytes, count_of(step), call.dtype, step);
    if (step > 0) {
      const Slice own = slice_of(count_of(step - 1), call.dtype, place_.rank, ranks());
      const std::size_t begin = own.begin * element, from = (step - 1) * tuning_.tile_bytes + begin;
      for (int rank = 0; rank < ranks(); ++rank)
        in_[static_cast<std::size_t>(rank)] = rank == place_.rank ? data + from : layout_.tile(rank, step - 1) + begin;
      out_[0] = is_root ? result + from : layout_.tile(call.root, step - 1) + begin;
      reduce(call, 1, own.count());
      count_read(own.count() * element * static_cast<std::size_t>(ranks() - 1));
    }
    rounds_.barrier();
    if (step > 0 && is_root)
      read_tile(result + (step - 1) * tuning_.tile_bytes, count_of(step - 1), call.dtype, step - 1);
  }
}

void ShmTransport::reduce_scatter(const Operation& operation) {
  const Signature& call = operation.signature;
  const std::size_t bytes = operation.bytes(), all = bytes * static_cast<std::size_t>(ranks());
  const std::size_t own = static_cast<std::size_t>(place_.rank) * bytes;
  const auto* const send = static_cast<const std::byte*>(operation.send);
  auto* const result = static_cast<std::byte*>(operation.receive);
  if (ranks() == 1) {
    if (bytes != 0 && result != send) std::memcpy(result, send, bytes);
    return;
  }
  const auto sum = [&] {
    in_[static_cast<std::size_t>(place_.rank)] = send + own;
    out_[0] = result;
    reduce(call, 1, call.count);
    count_read(bytes * static_cast<std::size_t>(ranks() - 1));
  };
  if (all <= tuning_.flat_bytes) {
    const std::uint64_t round = rounds_.next();
    if (all != 0) std::memcpy(small_slot(place_.rank, round, all), send, all);
    rounds_.barrier();
    for (int rank = 0; rank < ranks(); ++rank) in_[static_cast<std::size_t>(rank)] = small_slot(rank, round, all) + own;
    return sum();
  }
  if (!buffers_.locate(send, all)) return reduce_scatter_by_tiles(operation);
  for (int rank = 0; rank < ranks(); ++rank)
    in_[static_cast<std::size_t>(rank)] = buffers_.at(rank, own, operation.bytes());
  sum();
  rounds_.barrier();
}

// A tile holds a share of every rank's part; each rank sums its own part.
void ShmTransport::reduce_scatter_by_tiles(const Operation& operation) {
  const Signature& call = operation.signature;
  const std::size_t element = size_of(call.dtype), bytes = operation.bytes();
  // Bytes of one part in a tile.
  const std::size_t share = tuning_.tile_bytes / static_cast<std::size_t>(ranks()) / kCacheLine * kCacheLine;
  LOCKSTEP_CHECK(share != 0, "a tile of {} bytes has no room for the parts of {} ranks", tuning_.tile_bytes, ranks());
  const auto* const send = static_cast<const std::byte*>(operation.send);
  const auto me = static_cast<std::size_t>(place_.rank);
  std::uint64_t step = 0;
  for (std::size_t begin = 0; begin < bytes; begin += share, ++step) {
    const std::size_t length = std::min(share, bytes - begin);
    for (std::size_t owner = 0; owner < in_.size(); ++owner)
      if (owner != me)
        std::memcpy(layout_.tile(place_.rank, step) + owner * share, send + owner * bytes + begin, length);
    rounds_.barrier();
    for (std::size_t rank = 0; rank < in_.size(); ++rank)
      in_[rank] = rank == me ? send + me * bytes + begin : layout_.tile(static_cast<int>(rank), step) + me * share;
    out_[0] = static_cast<std::byte*>(operation.receive) + begin;
    reduce(call, 1, length / element);
    count_read(length * (in_.size() - 1));
  }
}

}  // namespace lockstep::host

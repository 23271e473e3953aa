// all_reduce through shared memory: in a header, in a slot, in place, or through tiles.
//
// Terms: n ranks with a message of B bytes each. Rounds, headers, slots and tiles are defined in control_block.h; a
// slice is the 1/n of the message that one rank reduces, in full cache lines.
//
//   path      messages                      rounds       bytes that a rank moves
//   header    up to line_bytes              1            reads (n-1) B of its peers' headers
//   slot      up to flat_bytes              1            copies B into its slot, reads (n-1) B of its peers' slots
//   in place  larger, in registered memory  2            reads (n-1)/n B of its peers' buffers, writes as many to them
//   tiles     larger, in other memory       tiles + 2    as in place, with tiles for buffers; also copies 2 (n-1)/n B
//                                                        into its own tiles and back
// Each slice is summed in rank order, or as LOCKSTEP_REDUCE_ORDER says, so that all paths give the same bits.
#include <algorithm>
#include <cstring>

#include "src/comm/host/reduce/reduce_kernels.h"
#include "src/comm/host/shm/shm_transport.h"

namespace lockstep::host {

void ShmTransport::all_reduce(const Operation& operation) {
  const std::size_t bytes = operation.bytes();
  if (operation.send != operation.receive && bytes != 0) std::memcpy(operation.receive, operation.send, bytes);
  if (ranks() == 1) return;
  if (bytes <= tuning_.flat_bytes) return all_reduce_small(operation);
  if (buffers_.locate(operation.receive, bytes)) return all_reduce_in_place(operation);
  all_reduce_by_tiles(operation);
}

// Every rank reads all values and computes the complete result: one round.
void ShmTransport::all_reduce_small(const Operation& operation) {
  const std::size_t bytes = operation.bytes();
  const std::uint64_t round = rounds_.next();
  if (bytes != 0) std::memcpy(small_slot(place_.rank, round, bytes), operation.receive, bytes);
  rounds_.barrier();
  for (int rank = 0; rank < ranks(); ++rank) in_[static_cast<std::size_t>(rank)] = small_slot(rank, round, bytes);
  out_[0] = static_cast<std::byte*>(operation.receive);
  reduce(operation.signature, 1, operation.signature.count);
  count_read(bytes * static_cast<std::size_t>(ranks() - 1));
}

void ShmTransport::all_reduce_in_place(const Operation& operation) {
  const Signature& call = operation.signature;
  const Slice slice = slice_of(call.count, call.dtype, place_.rank, ranks());
  const std::size_t element = size_of(call.dtype);
  for (int rank = 0; rank < ranks(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    in_[r] = out_[r] = buffers_.at(rank, slice.begin * element, slice.count() * element);
  }
  reduce(call, ranks(), slice.count());
  count_read(slice.count() * element * static_cast<std::size_t>(ranks() - 1));
  rounds_.barrier();
}

// Step t fills its tile, reduces the previous one, and after the round reads the results of that one: filling, reducing
// and reading use three tiles in turn. A tile is filled again three steps later, two rounds after it was read.
void ShmTransport::all_reduce_by_tiles(const Operation& operation) {
  const Signature& call = operation.signature;
  const std::size_t element = size_of(call.dtype), per_step = tuning_.tile_bytes / element;
  const std::size_t steps = (call.count + per_step - 1) / per_step;
  auto* const data = static_cast<std::byte*>(operation.receive);
  const auto count_of = [&](std::size_t step) { return std::min(per_step, call.count - step * per_step); };
  for (std::size_t step = 0; step <= steps; ++step) {
    if (step < steps) fill_tile(data + step * tuning_.tile_bytes, count_of(step), call.dtype, step);
    if (step > 0) reduce_tile(operation, data + (step - 1) * tuning_.tile_bytes, count_of(step - 1), step - 1);
    rounds_.barrier();
    if (step > 0) read_tile(data + (step - 1) * tuning_.tile_bytes, count_of(step - 1), call.dtype, step - 1);
  }
}

// Copies the slices that others reduce. The rank's own slice is read from its place.
void ShmTransport::fill_tile(const std::byte* data, std::size_t count, DType dtype, std::uint64_t step) {
  const std::size_t element = size_of(dtype);
  const Slice own = slice_of(count, dtype, place_.rank, ranks());
  std::byte* tile = layout_.tile(place_.rank, step);
  std::memcpy(tile, data, own.begin * element);
  std::memcpy(tile + own.end * element, data + own.end * element, (count - own.end) * element);
}

void ShmTransport::reduce_tile(const Operation& operation, std::byte* data, std::size_t count, std::uint64_t step) {
  const Signature& call = operation.signature;
  const Slice own = slice_of(count, call.dtype, place_.rank, ranks());
  const std::size_t begin = own.begin * size_of(call.dtype);
  for (int rank = 0; rank < ranks(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    in_[r] = out_[r] = (rank == place_.rank ? data : layout_.tile(rank, step)) + begin;
  }
  reduce(call, ranks(), own.count());
  count_read(own.count() * size_of(call.dtype) * static_cast<std::size_t>(ranks() - 1));
}

// Copies the other ranks' slices; their owners have left the results in this rank's tile.
void ShmTransport::read_tile(std::byte* data, std::size_t count, DType dtype, std::uint64_t step) {
  const std::size_t element = size_of(dtype);
  const Slice own = slice_of(count, dtype, place_.rank, ranks());
  const std::byte* tile = layout_.tile(place_.rank, step);
  std::memcpy(data, tile, own.begin * element);
  std::memcpy(data + own.end * element, tile + own.end * element, (count - own.end) * element);
}

}  // namespace lockstep::host

// The control memory that the ranks of one machine share: a fixed layout at the start of a segment that all of them
// map.
//
// Terms. Round: one step of all ranks of the node. In round k a rank fills its header, and its slot or tile, then
// publishes k in the header; a rank that has seen k in all headers knows that all have arrived. Header: a rank's part
// in a round, one cache line. Slot: a rank's kSlotBytes for a message that all ranks read in full. Tile: one of a
// rank's three windows of kTileBytes, through which unregistered memory travels. Slice: the 1/n of a message that one
// of n ranks reduces, in full cache lines (reduce_kernels.h). There are two headers, for even and odd rounds: the
// header of round k is written again in round k + 2, which its owner enters only after all ranks have published k + 1,
// that is, have read round k.
//
// Order of memory accesses (no processor's strong order is assumed). `round` publishes, by a sequentially consistent
// store, all that its rank has written before: the header, its slot and tiles, its registered memory, and results in
// the tiles and registered memory of others. A rank reads these only after a sequentially consistent load has seen the
// round. The same pair orders reuse: a rank reads the data of round k before it stores round k + 1, and their owner
// loads round k + 1 before it writes the memory again.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lockstep/comm/operation.h"
#include "src/comm/call/group_error.h"
#include "src/comm/host/machine/activity.h"
#include "src/core/base/processor.h"

namespace lockstep::host {

inline constexpr std::size_t kHeaderPayload = 48;
inline constexpr std::size_t kSlotBytes = 8192;        // a rank's slot, for messages that all ranks read in full
inline constexpr std::size_t kTileBytes = 512 * 1024;  // a rank's window, for unregistered memory
inline constexpr int kTiles = 3;                       // filled, being reduced, being read

// Size of a channel for messages from one rank to another. Ranks that share a core switch when a channel is full or
// empty, so few ranks get large channels. All channels together have at most 64 MiB of addresses, and memory once they
// are used.
constexpr std::size_t channel_bytes(int ranks) {
  constexpr std::size_t kAll = std::size_t{64} << 20, kLeast = std::size_t{64} << 10, kMost = std::size_t{4} << 20;
  std::size_t bytes = kMost;
  while (bytes > kLeast && bytes * static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks) > kAll) bytes /= 2;
  return ranks == 1 ? kLeast : bytes;
}

// One rank's part in one round. It fills one cache line, so that a reader fetches it at once.
struct alignas(kCacheLine) RoundHeader {
  std::atomic<std::uint64_t> round;
  std::uint64_t signature;  // hash; the OperationRecord has the full operation
  std::byte payload[kHeaderPayload];
};
static_assert(sizeof(RoundHeader) == kCacheLine);

// A rank's full operation. Others read it only to explain a mismatch, after they have seen a round of that operation.
struct alignas(kCacheLine) OperationRecord {
  Signature signature;
  PassState pass;
  char purpose[64];
};

// Two cache lines: the prefetcher fetches pairs, which must belong to one rank.
struct alignas(2 * kCacheLine) RankBlock {
  RoundHeader headers[2];
  OperationRecord operation;
  std::atomic<std::uint32_t> left;  // sent a goodbye
  std::atomic<std::int32_t> pid;    // 0: not registered yet; its store publishes `host`
  char host[64];                    // written before the pid
  ActivityRecord activity;
};

// Bytes on their way from one rank to another: a ring with one writer and one reader, which count the bytes that they
// wrote and read. The store of `written` publishes the bytes, and the store of `read` gives their room back: the writer
// loads it before it writes there again.
struct Channel {
  alignas(kCacheLine) std::atomic<std::uint64_t> written;
  alignas(kCacheLine) std::atomic<std::uint64_t> read;
  std::byte* bytes() { return reinterpret_cast<std::byte*>(this + 1); }  // channel_bytes()
};

// Why the group has ended. The first rank to write it wins; all ranks throw this error. The state kWritten publishes
// the other fields.
struct GroupErrorRecord {
  enum State : std::uint32_t { kOpen, kBeingWritten, kWritten };
  std::atomic<std::uint32_t> state;
  GroupErrorKind kind;
  char text[1016];
};

struct ControlBlock {
  alignas(kCacheLine) std::atomic<std::uint32_t> wake_word;  // futex: changes when a sleeper should check again
  std::atomic<std::uint32_t> sleepers;                       // ranks that sleep, or are about to
  alignas(kCacheLine) GroupErrorRecord group_error;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free,
              "atomics between processes must be lock free");

// Finds the parts of a control segment. All zero bytes are a valid initial state.
class ControlLayout {
 public:
  ControlLayout(std::byte* base, int ranks) : base_(base), ranks_(static_cast<std::size_t>(ranks)) {}

  static std::size_t bytes(int ranks) {
    const auto n = static_cast<std::size_t>(ranks);
    return channels_at(n) + n * n * (sizeof(Channel) + channel_bytes(ranks));
  }

  int ranks() const { return static_cast<int>(ranks_); }
  ControlBlock& control() const { return *reinterpret_cast<ControlBlock*>(base_); }
  RankBlock& block(int rank) const { return reinterpret_cast<RankBlock*>(base_ + kBlocksAt)[rank]; }
  RoundHeader& header(int rank, std::uint64_t round) const { return block(rank).headers[round % 2]; }
  std::byte* slot(int rank, std::uint64_t round) const {
    return base_ + flat_at(ranks_) + (static_cast<std::size_t>(rank) * 2 + round % 2) * kSlotBytes;
  }
  std::byte* tile(int rank, std::uint64_t step) const {
    return base_ + tiles_at(ranks_) + (static_cast<std::size_t>(rank) * kTiles + step % kTiles) * kTileBytes;
  }
  Channel& channel(int from, int to) const {
    const std::size_t number = static_cast<std::size_t>(from) * ranks_ + static_cast<std::size_t>(to);
    return *reinterpret_cast<Channel*>(base_ + channels_at(ranks_) +
                                       number * (sizeof(Channel) + channel_bytes(ranks())));
  }

 private:
  static constexpr std::size_t kBlocksAt = 4096;
  static_assert(sizeof(ControlBlock) <= kBlocksAt);
  static std::size_t flat_at(std::size_t ranks) { return kBlocksAt + ranks * sizeof(RankBlock); }
  static std::size_t tiles_at(std::size_t ranks) {
    return (flat_at(ranks) + ranks * 2 * kSlotBytes + 4095) / 4096 * 4096;
  }
  static std::size_t channels_at(std::size_t ranks) { return tiles_at(ranks) + ranks * kTiles * kTileBytes; }

  std::byte* base_;
  std::size_t ranks_;
};

}  // namespace lockstep::host

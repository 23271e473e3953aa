// The control memory that the ranks of one machine share: one fixed layout at the start of a segment that all of them
// map.
//
// Terms. Round: one step of all ranks of the node. In round k a rank fills its line, and its slot or tile, then
// publishes k in the line; a rank that has seen k in all lines knows that all have arrived. Line: a rank's part in a
// round, one cache line. Slot: a rank's kSlotBytes for a message that all ranks read whole. Tile: one of a rank's three
// windows of kTileBytes, through which unregistered memory travels. Slice: the 1/n of a message that one of n ranks
// reduces, in whole cache lines (reduce_kernels.h). Lines are doubled by the round's parity: a line of round k is
// written again in round k + 2, which its owner enters only after all ranks published k + 1, that is, read round k.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lockstep/comm/operation.h"
#include "src/comm/call/group_error.h"
#include "src/comm/host/machine/activity.h"
#include "src/core/base/cache_line.h"

namespace lockstep::host {

inline constexpr std::size_t kLinePayload = 48;
inline constexpr std::size_t kSlotBytes = 8192;        // a rank's slot for messages that all ranks read whole
inline constexpr std::size_t kTileBytes = 512 * 1024;  // a rank's window for memory that is not registered
inline constexpr int kTiles = 3;                       // filled, being reduced, being read

// From one rank to another, for messages. Ranks that share a core change places when a channel is full or empty, so
// that few ranks get much room; all channels together have 64 MiB of addresses at most, and memory once they are used.
constexpr std::size_t channel_bytes(int ranks) {
  constexpr std::size_t kAll = std::size_t{64} << 20, kLeast = std::size_t{64} << 10, kMost = std::size_t{4} << 20;
  std::size_t bytes = kMost;
  while (bytes > kLeast && bytes * static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks) > kAll) bytes /= 2;
  return ranks == 1 ? kLeast : bytes;
}

// One rank's part in one round, in one cache line: seeing the round number means having the rest as well.
struct alignas(kCacheLine) Line {
  std::atomic<std::uint64_t> round;
  std::uint64_t signature;  // hash; the whole lies in the card
  std::byte payload[kLinePayload];
};
static_assert(sizeof(Line) == kCacheLine);

// The operation of a rank, in full: read by others only to explain a disagreement.
struct alignas(kCacheLine) Card {
  Signature signature;
  PassState pass;
  char purpose[64];
};

struct alignas(2 * kCacheLine) RankBlock {  // two lines: what the prefetcher fetches as a pair belongs to one rank
  Line lines[2];
  Card card;
  std::atomic<std::uint32_t> left;  // said goodbye
  std::atomic<std::int32_t> pid;    // 0: has not come yet
  char host[64];                    // written before the pid
  ActivityRecord activity;
};

// Bytes on their way from one rank to another: a ring with one writer and one reader, which count what passed.
struct Channel {
  alignas(kCacheLine) std::atomic<std::uint64_t> written;
  alignas(kCacheLine) std::atomic<std::uint64_t> read;
  std::byte* bytes() { return reinterpret_cast<std::byte*>(this + 1); }  // channel_bytes()
};

// Why the group is over. The first to write it wins; all ranks throw what stands here.
struct GroupErrorRecord {
  enum State : std::uint32_t { kOpen, kBeingWritten, kWritten };
  std::atomic<std::uint32_t> state;
  GroupErrorKind kind;
  char text[1016];
};

struct ControlBlock {
  alignas(kCacheLine) std::atomic<std::uint32_t> wake_word;  // futex: changes when a sleeper should look again
  std::atomic<std::uint32_t> sleepers;                       // ranks that sleep, or are about to
  alignas(kCacheLine) GroupErrorRecord group_error;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free,
              "atomics between processes must be lock free");

// Finds the parts of a control segment. All zero bytes are its valid first state.
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
  Line& line(int rank, std::uint64_t round) const { return block(rank).lines[round % 2]; }
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

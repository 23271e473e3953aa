// Collectives through shared memory, for ranks on one machine.
//
// Up to 48 bytes travel in the header that announces the rank, up to about 512 in a slot: one round (tuning.h has the
// limits). For a larger message, the first round publishes the locations of all ranks' data. If all of it is in one
// registered segment, the collectives work in place:
//   all_reduce  Each rank loads all ranks' values of its own 1/n slice, adds them in rank order, and stores the result
//               into all buffers: n reads and n writes for each element, no staging. Then one more round.
//   reduce, reduce_scatter  The same, but the result is stored only into the root's, or the owner's, buffer.
//   broadcast, all_gather, gather, scatter, all_to_all  Each rank copies the parts that it needs from its peers'
//               buffers. Then one more round.
// Otherwise the data passes through tiles, windows of shared memory; every rank owns three. Each tile takes a round.
//
// Results are written to the place from which their inputs were read, in tiles, too. A core that has just read a peer's
// cache line can write it at once, whereas a write to its own line that a peer has read since costs a round trip (two
// Zen 4 cores, 128 KiB in tiles: 12 us and 108 us).
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/place.h"
#include "src/comm/call/collectives.h"
#include "src/comm/call/transport.h"
#include "src/comm/host/liveness/failure_detector.h"
#include "src/comm/host/machine/control_block.h"
#include "src/comm/host/machine/shared_memory_provider.h"
#include "src/comm/host/shm/node_buffers.h"
#include "src/comm/host/shm/rounds.h"
#include "src/comm/host/shm/shm_channels.h"
#include "src/comm/host/shm/tuning.h"

namespace lockstep::host {

class ShmTransport : public Transport, private Collectives {
 public:
  // `control` is the provider's first segment, of ControlLayout::bytes(world_size).
  ShmTransport(const Place& place, std::unique_ptr<SharedMemoryProvider> provider,
               std::shared_ptr<SharedSegment> control, const Tuning& tuning = {},
               std::chrono::milliseconds stall_timeout = FailureDetectorOptions{}.stall_timeout);
  ~ShmTransport() override;

  std::string_view name() const override { return "shm"; }
  void execute(const Operation& operation) override;
  void compare(const Operation& operation) override;
  Buffer allocate(const Operation& operation) override;
  std::vector<std::byte*> peer_addresses(const void* data, std::size_t bytes) const override;
  ByteChannels& channels() override { return channels_; }
  void abort(const std::string& reason) override;
  void leave() noexcept override;
  void on_over(std::function<void(const std::string&)> call) override {
    detector_.on_over([this, call = std::move(call)] { call(detector_.group_error().text); });
  }
  TransportCounters counters() const override { return {bytes_read_.load(std::memory_order_relaxed), 0}; }

 private:
  void barrier(const Operation&) override { rounds_.barrier(); }
  void all_reduce(const Operation& operation) override;
  void all_reduce_small(const Operation& operation);
  void all_reduce_in_place(const Operation& operation);
  void all_reduce_by_tiles(const Operation& operation);
  void fill_tile(const std::byte* data, std::size_t count, DType dtype, std::uint64_t step);
  void reduce_tile(const Operation& operation, std::byte* data, std::size_t count, std::uint64_t step);
  void read_tile(std::byte* data, std::size_t count, DType dtype, std::uint64_t step);

  void reduce_to_root(const Operation& operation) override;
  void reduce_by_tiles(const Operation& operation, const std::byte* data);
  void reduce_scatter(const Operation& operation) override;
  void reduce_scatter_by_tiles(const Operation& operation);

  // The data that this rank copies from a peer: `bytes` from `offset` of the peer's offer.
  struct Pull {
    int peer;
    std::size_t offset;
    std::size_t bytes;
    std::byte* to;
  };
  // The data that this rank offers (bytes may be 0), and the buffer by which the ranks find out whether all data is
  // registered.
  struct Offer {
    const std::byte* data;
    std::size_t bytes;
    const void* anchor;
    std::size_t anchor_bytes;
    std::size_t largest;  // of all ranks' offers
  };
  void broadcast(const Operation& operation) override;
  void all_gather(const Operation& operation) override;
  void gather(const Operation& operation) override;
  void scatter(const Operation& operation) override;
  void all_to_all(const Operation& operation) override;
  void all_gather_v(const Operation& operation) override;
  void all_to_all_v(const Operation& operation) override;
  void move(const Offer& offer);  // executes pulls_
  void move_small(const Offer& offer);
  void move_by_tiles(const Offer& offer);

  void read_from_peer(void* out, const std::byte* from, std::size_t bytes);
  void count_read(std::size_t bytes) { bytes_read_.fetch_add(bytes, std::memory_order_relaxed); }
  int ranks() const { return place_.world_size; }
  // The location of a rank's message of that size in a round in which all ranks read it in full.
  std::byte* small_slot(int rank, std::uint64_t round, std::size_t bytes) const {
    return bytes <= tuning_.line_bytes ? layout_.header(rank, round).payload : layout_.slot(rank, round);
  }
  // Reduces in_ into out_, in the group's order of summation.
  void reduce(const Signature& call, int outputs, std::size_t count);

  Place place_;
  Tuning tuning_;
  std::unique_ptr<SharedMemoryProvider> provider_;
  std::shared_ptr<SharedSegment> control_;
  ControlLayout layout_;
  FailureDetector detector_;
  NodeBuffers buffers_;
  Rounds& rounds_;  // of buffers_
  ShmChannels channels_;
  std::vector<const std::byte*> in_;  // by rank; a member so that operations need no allocation
  std::vector<std::byte*> out_;       // by rank
  std::vector<Pull> pulls_;
  std::vector<std::byte> scratch_;  // the source of an all_to_all in place
  std::atomic<std::uint64_t> bytes_read_{0};
  std::atomic<bool> left_{false};
};

}  // namespace lockstep::host

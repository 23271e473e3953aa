// Memory that all ranks of the machine have mapped: found by address on this rank, by location on its peers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/core/buffer.h"
#include "src/comm/host/machine/shared_memory_provider.h"

namespace lockstep::host {

// Where a buffer begins, in words that all ranks understand: which registered segment, and how far into the rank's part
// of it. Travels in a line.
struct Location {
  std::uint64_t segment = 0;  // counted from 1; 0: not registered memory
  std::uint64_t offset = 0;
};

class RegisteredMemory {
 public:
  explicit RegisteredMemory(int rank) : rank_(rank) {}

  // Bytes from one rank's part to the next in a segment of `bytes` a rank.
  static std::size_t stride_of(std::size_t bytes);

  // Takes a segment of ranks * stride_of(bytes) bytes; the segment's number is that of the call, the same on all ranks.
  // The result is this rank's part; it leaves the registry (and the memory goes) when its last handle does.
  static Buffer add(const std::shared_ptr<RegisteredMemory>& self, std::shared_ptr<SharedSegment> segment,
                    std::size_t bytes);

  // Where [data, data + bytes) lies if it is inside one of this rank's parts.
  struct Found {
    Location location;
    std::byte* base = nullptr;  // of rank 0's part in this process's mapping
    std::size_t stride = 0;
    std::size_t part_bytes = 0;  // of every rank

    // Where `bytes` bytes lie, from `skip` bytes on in the buffer that begins `offset` bytes into the rank's part:
    // which is what that rank said. Throws std::runtime_error (no Error, see refuse()): they are not all inside.
    std::byte* at(int rank, std::uint64_t offset, std::size_t skip, std::size_t bytes) const {
      if (offset > part_bytes || skip > part_bytes - offset || bytes > part_bytes - offset - skip)
        refuse(rank, offset, skip + bytes);
      return base + static_cast<std::size_t>(rank) * stride + offset + skip;
    }

    [[noreturn]] void refuse(int rank, std::uint64_t offset, std::size_t bytes) const;
  };
  Found find(const void* data, std::size_t bytes) const;

 private:
  struct Entry {
    std::uint64_t number;
    std::byte* base;   // of rank 0's part
    std::byte* begin;  // of this rank's part
    std::size_t bytes;
    std::size_t stride;
  };
  void remove(std::uint64_t number);

  int rank_;
  mutable std::mutex mutex_;    // buffers may go in any thread
  std::vector<Entry> entries_;  // sorted by begin
  std::uint64_t last_number_ = 0;
};

}  // namespace lockstep::host

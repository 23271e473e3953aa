// Memory that all ranks of the machine have mapped. A rank finds its own by address, and its peers' by location.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/core/buffer.h"
#include "src/comm/host/machine/shared_memory_provider.h"

namespace lockstep::host {

// The start of a buffer in a form that is valid on all ranks: the registered segment, and the offset in the rank's part
// of it. It is sent in a round header.
struct Location {
  std::uint64_t segment = 0;  // from 1; 0: unregistered memory
  std::uint64_t offset = 0;
};

class RegisteredMemory {
 public:
  explicit RegisteredMemory(int rank) : rank_(rank) {}

  // Distance between the parts of two ranks in a segment of `bytes` for each rank.
  static std::size_t stride_of(std::size_t bytes);

  // Adds a segment of ranks * stride_of(bytes) bytes; its number is that of the call, the same on all ranks. Returns
  // this rank's part. The last handle to it removes it from the registry and frees the memory.
  static Buffer add(const std::shared_ptr<RegisteredMemory>& self, std::shared_ptr<SharedSegment> segment,
                    std::size_t bytes);

  // The location of [data, data + bytes), if it is inside one of this rank's parts.
  struct Found {
    Location location;
    std::byte* base = nullptr;  // of rank 0's part in this process's mapping
    std::size_t stride = 0;
    std::size_t part_bytes = 0;  // of every rank

    // The address of `bytes` bytes, `skip` bytes after the start of the buffer that the rank has published as beginning
    // at `offset` in its part. Throws std::runtime_error (not Error, see refuse()) if they exceed the part.
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
  mutable std::mutex mutex_;    // any thread may destroy a buffer
  std::vector<Entry> entries_;  // sorted by begin
  std::uint64_t last_number_ = 0;
};

}  // namespace lockstep::host

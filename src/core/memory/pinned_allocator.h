// Pinned host memory of a GPU: a cache of blocks, and copies from any host memory through it.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/core/device.h"

namespace lockstep {

// The source of blocks: cudaMallocHost, or a replacement for tests.
class PinnedSource {
 public:
  virtual ~PinnedSource() = default;
  virtual std::byte* take(std::size_t bytes) = 0;  // null: the system has no more
  virtual void give_back(std::byte* block) noexcept = 0;
};

// Keeps every freed block, because pinning costs far more than a copy. Must outlive its buffers.
class PinnedAllocator {
 public:
  PinnedAllocator(Device& device, PinnedSource& source) : device_(device), source_(source) {}
  ~PinnedAllocator();

  // Reuses a freed block if it is at most a quarter too large. Throws Error if the system has no more memory.
  Buffer allocate(std::size_t bytes);

 private:
  void release(std::byte* block, std::size_t bytes);

  Device& device_;
  PinnedSource& source_;
  std::mutex mutex_;
  std::multimap<std::size_t, std::byte*> free_;
};

// Implements Device::upload: the bytes are copied to pinned memory at once, and from there by the device. Threads may
// share it.
class Uploader {
 public:
  Uploader(Device& device, PinnedAllocator& pinned) : device_(device), pinned_(pinned) {}
  void upload(void* destination, const void* source, std::size_t bytes, Stream& stream);

 private:
  struct UnderWay {
    Buffer memory;
    std::unique_ptr<Event> copied;
  };
  void retire();

  Device& device_;
  PinnedAllocator& pinned_;
  std::mutex mutex_;
  std::deque<UnderWay> under_way_;  // oldest first
  std::size_t bytes_under_way_ = 0;
  std::vector<std::unique_ptr<Event>> events_;  // unused ones
};

}  // namespace lockstep

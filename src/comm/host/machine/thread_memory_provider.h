// Plain mappings in one process: for ranks that are threads of it, and for a rank that is alone.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "src/comm/host/machine/shared_memory_provider.h"

namespace lockstep::host {

// Zeroed private pages of this process.
std::shared_ptr<SharedSegment> map_private_segment(std::size_t bytes);

// The rendezvous point of the threads of one group: make one and pass it to all of them. It owns their shared memory.
class ThreadRendezvous {
 public:
  // Returns the segment of the `index`-th call, which the first rank to arrive makes.
  std::shared_ptr<SharedSegment> segment(std::size_t index, std::size_t bytes);

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<SharedSegment>> segments_;
};

class ThreadMemoryProvider : public SharedMemoryProvider {
 public:
  explicit ThreadMemoryProvider(std::shared_ptr<ThreadRendezvous> rendezvous) : rendezvous_(std::move(rendezvous)) {}
  std::shared_ptr<SharedSegment> share(std::size_t bytes, std::chrono::milliseconds timeout) override;

 private:
  std::shared_ptr<ThreadRendezvous> rendezvous_;
  std::size_t calls_ = 0;
};

// For a rank that shares its memory with no other.
class PrivateMemoryProvider : public SharedMemoryProvider {
 public:
  std::shared_ptr<SharedSegment> share(std::size_t bytes, std::chrono::milliseconds) override {
    return map_private_segment(bytes);
  }
};

}  // namespace lockstep::host

// A GPU's caching allocator: policy, accounts and errors, above a pool that the driver keeps (cudaMallocAsync's).
//
// Memory is taken and given back in the order of the device's default stream, so that a block may be handed out again while the
// GPU still works on what was queued before: nobody waits. Apart from the pool, which tests replace.
#pragma once

#include <cstddef>
#include <mutex>

#include "lockstep/core/device.h"
#include "src/core/memory_policy.h"

namespace lockstep {

class MemoryPool {
 public:
  virtual ~MemoryPool() = default;
  virtual std::byte* take(std::size_t bytes) = 0;  // null: exhausted
  virtual void give_back(std::byte* block, std::size_t bytes) noexcept = 0;
  virtual std::size_t held() const = 0;  // from the system, in use or not
  // Of the whole device, whoever holds it.
  virtual std::size_t free_on_device() const = 0;
  virtual std::size_t size_of_device() const = 0;
};

class StreamAllocator {
 public:
  // With MemoryPolicy::kAll takes the memory now; throws Error when it is not to be had.
  StreamAllocator(Device& device, MemoryPool& pool, const MemoryPolicy& policy);

  // Throws Error: what was asked, what this process holds and uses, what is free, and what to do.
  Buffer allocate(std::size_t bytes);
  AllocatorStats stats() const;

 private:
  [[noreturn]] void report_exhausted(std::size_t bytes) const;
  void release(std::byte* block, std::size_t bytes);

  Device& device_;
  MemoryPool& pool_;
  MemoryPolicy policy_;
  mutable std::mutex mutex_;
  AllocatorStats stats_;
};

}  // namespace lockstep

// A GPU's caching allocator: policy, accounts and errors, above a pool that the driver keeps (cudaMallocAsync's).
//
// Memory is taken and given back in the order of the device's default stream, so that a block may be handed out again while the
// GPU still does the work that was queued before: no thread waits. Apart from the pool, which tests replace.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>

#include "lockstep/core/device.h"
#include "src/core/memory_policy.h"

namespace lockstep {

class MemoryPool {
 public:
  virtual ~MemoryPool() = default;
  virtual std::byte* take(std::size_t bytes) = 0;  // null: exhausted
  // The same apart from the order of the default stream: nothing that was queued uses the block, and nothing is queued for it.
  virtual std::byte* take_apart(std::size_t bytes) = 0;
  virtual void give_back(std::byte* block, std::size_t bytes) noexcept = 0;
  virtual std::size_t held() const = 0;  // from the system, in use or not
  // Of the whole device, whichever process holds it.
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

  // While the default stream is captured, nothing may be taken or given back in its order: that would become part of the graph. What
  // this thread allocates comes from an arena that hands blocks out again in the order of the calls, which is the order in which every
  // replay uses them; what is freed of older blocks stays, since the graph may use it. Both until the arena goes: the graph, and the
  // buffers that outlive the capture, keep it. Other threads' blocks are taken apart, and given back afterwards.
  void begin_capture();
  std::shared_ptr<void> end_capture();

 private:
  class Arena;
  [[noreturn]] void report_exhausted(std::size_t bytes) const;
  std::byte* take(std::size_t rounded, std::size_t asked);  // and accounts; the mutex is held
  void release(std::byte* block, std::size_t bytes);
  void release_now_or_later(std::byte* block, std::size_t bytes);  // the mutex is held

  Device& device_;
  MemoryPool& pool_;
  MemoryPolicy policy_;
  mutable std::mutex mutex_;
  AllocatorStats stats_;
  std::shared_ptr<Arena> arena_;  // of the capture that is under way
  std::thread::id capturing_;
};

}  // namespace lockstep

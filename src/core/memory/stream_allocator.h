// A GPU's caching allocator: policy, statistics and errors, on top of the driver's pool (cudaMallocAsync's).
//
// Memory is allocated and freed in the order of the device's default stream, so a block may be reused while the GPU
// still works on earlier operations: nobody waits. Freed blocks are cached by size, so a step that repeats itself does
// not call the driver. If a new size does not fit any more, if the cache exceeds twice the peak use, and before a
// capture, the cache is returned to the pool, which can form other sizes from it. Operators' workspaces on other
// streams are cached per stream, in its order. Tests replace the pool.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "lockstep/core/device.h"
#include "src/core/memory/memory_policy.h"

namespace lockstep {

class MemoryPool {
 public:
  virtual ~MemoryPool() = default;
  virtual std::byte* take(std::size_t bytes) = 0;  // null: exhausted
  // The same without the order of the default stream: no queued work uses the block.
  virtual std::byte* take_apart(std::size_t bytes) = 0;
  virtual void give_back(std::byte* block, std::size_t bytes) noexcept = 0;
  // In the order of another stream.
  virtual std::byte* take_on(Stream& stream, std::size_t bytes) = 0;
  virtual void give_back_on(Stream& stream, std::byte* block, std::size_t bytes) noexcept = 0;
  // Waits until freed memory can be reused, and returns unused memory to the system, down to `keep` bytes; adjacent
  // blocks are merged. Must not be called while the default stream is captured.
  virtual void settle(std::size_t keep) = 0;
  virtual std::size_t held() const = 0;  // from the system, in use or not
  // On the entire device, over all processes.
  virtual std::size_t free_on_device() const = 0;
  virtual std::size_t size_of_device() const = 0;
};

class StreamAllocator {
 public:
  // With MemoryPolicy::kAll allocates the memory now; throws Error if it is not available.
  StreamAllocator(Device& device, MemoryPool& pool, const MemoryPolicy& policy);
  ~StreamAllocator();  // must run after its last buffer is freed
  StreamAllocator(const StreamAllocator&) = delete;
  StreamAllocator& operator=(const StreamAllocator&) = delete;

  // Throws Error with the requested size, what this process holds and uses, what is free, and what to do.
  Buffer allocate(std::size_t bytes) { return allocate_for(nullptr, bytes); }
  // Memory for the duration of an operator on that stream, which belongs to this device.
  Buffer allocate_on(Stream& stream, std::size_t bytes);
  void forget(Stream& stream) noexcept;  // must be called before the stream is destroyed
  AllocatorStats stats() const;
  // Returns unused cached memory to the system; waits for the device. Does nothing while a graph is recorded.
  void empty_cache();

  // While the default stream, and possibly others, are captured, nothing may be allocated or freed in their order: that
  // would become part of the graph. This thread's allocations come from an arena, which reuses blocks for the same
  // stream in the order of the calls; every replay uses them in this order. Older blocks that are freed stay allocated,
  // because the graph may use them. Both lasts until the arena is destroyed; the graph, and buffers that outlive the
  // capture, keep it. Other threads' blocks are allocated separately and freed afterwards.
  void begin_capture();
  std::shared_ptr<void> end_capture();

 private:
  class Arena;
  [[noreturn]] void report_exhausted(std::size_t bytes) const;
  using Kept = std::map<std::size_t, std::vector<std::byte*>>;  // by size
  Buffer allocate_for(Stream* order, std::size_t bytes);
  // Call these with the mutex held. `order`: the stream; null: the default stream.
  std::byte* take(Stream* order, std::size_t rounded, std::size_t asked);  // and updates the statistics
  std::byte* take_kept(Stream* order, std::size_t rounded);                // null: there is none of the size
  std::byte* take_from_pool(Stream* order, std::size_t rounded);           // null: exhausted
  std::byte* take_in_order(Stream* order, std::size_t rounded) {
    return order != nullptr ? pool_.take_on(*order, rounded) : pool_.take(rounded);
  }
  void give_back(Stream* order, Kept& kept) noexcept;
  void empty_kept() noexcept;
  void release(Stream* order, std::byte* block, std::size_t bytes);
  void release_now_or_later(Stream* order, std::byte* block, std::size_t bytes);

  Device& device_;
  MemoryPool& pool_;
  MemoryPolicy policy_;
  const std::size_t device_bytes_;
  mutable std::mutex mutex_;
  AllocatorStats stats_;
  std::map<Stream*, Kept> kept_;                 // for each stream; null: the default stream
  std::size_t kept_bytes_ = 0, peak_bytes_ = 0;  // peak of the bytes in use
  std::shared_ptr<Arena> arena_;                 // of the current capture
  std::set<Arena*> arenas_;                      // the current one, and those that graphs and buffers keep
  std::thread::id capturing_;
};

}  // namespace lockstep

// A GPU's caching allocator: policy, accounts and errors, above a pool that the driver keeps (cudaMallocAsync's).
//
// Memory is taken and given back in the order of the device's default stream, so that a block may be handed out again
// while the GPU still works on what was queued before: nobody waits. What is given back is kept by size: a step that
// repeats itself asks the driver for nothing. Where a new size finds no room any more, where more is kept than twice
// what was ever in use, and before a capture, what is kept goes back to the pool, which makes other sizes of it.
// Operators' workspaces on other streams are kept for each in its own order. Apart from the pool, which tests replace.
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
  // The same apart from the order of the default stream: nothing that was queued uses the block, and nothing is queued
  // for it.
  virtual std::byte* take_apart(std::size_t bytes) = 0;
  virtual void give_back(std::byte* block, std::size_t bytes) noexcept = 0;
  // In the order of another stream.
  virtual std::byte* take_on(Stream& stream, std::size_t bytes) = 0;
  virtual void give_back_on(Stream& stream, std::byte* block, std::size_t bytes) noexcept = 0;
  // Waits until what was given back is free, and returns to the system what is not in use, down to `keep` bytes: then
  // blocks beside each other are one. Never while the default stream is captured.
  virtual void settle(std::size_t keep) = 0;
  virtual std::size_t held() const = 0;  // from the system, in use or not
  // Of the whole device, whichever process holds it.
  virtual std::size_t free_on_device() const = 0;
  virtual std::size_t size_of_device() const = 0;
};

class StreamAllocator {
 public:
  // With MemoryPolicy::kAll takes the memory now; throws Error when it is not to be had.
  StreamAllocator(Device& device, MemoryPool& pool, const MemoryPolicy& policy);
  ~StreamAllocator();  // after its last buffer
  StreamAllocator(const StreamAllocator&) = delete;
  StreamAllocator& operator=(const StreamAllocator&) = delete;

  // Throws Error: what was asked, what this process holds and uses, what is free, and what to do.
  Buffer allocate(std::size_t bytes) { return allocate_for(nullptr, bytes); }
  // For the length of an operator on that stream, which is this device's.
  Buffer allocate_on(Stream& stream, std::size_t bytes);
  void forget(Stream& stream) noexcept;  // before it goes
  AllocatorStats stats() const;
  // Returns what is kept, and not in use, to the system; waits for the device. Nothing while a graph is recorded.
  void empty_cache();

  // While the default stream is captured, and others along with it, nothing may be taken or given back in their order:
  // that would become part of the graph. What this thread allocates comes from an arena that hands blocks out again, to
  // the same stream, in the order of the calls, which is the order in which every replay uses them; what is freed of
  // older blocks stays, since the graph may use it. Both until the arena goes: the graph, and the buffers that outlive
  // the capture, keep it. Other threads' blocks are taken apart, and given back afterwards.
  void begin_capture();
  std::shared_ptr<void> end_capture();

 private:
  class Arena;
  [[noreturn]] void report_exhausted(std::size_t bytes) const;
  using Kept = std::map<std::size_t, std::vector<std::byte*>>;  // by size
  Buffer allocate_for(Stream* order, std::size_t bytes);
  // The mutex is held in those below. `order`: the stream's, null: the default one's.
  std::byte* take(Stream* order, std::size_t rounded, std::size_t asked);  // and accounts
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
  std::map<Stream*, Kept> kept_;                 // in the order of each stream; null: the default one
  std::size_t kept_bytes_ = 0, peak_bytes_ = 0;  // peak: of the bytes in use
  std::shared_ptr<Arena> arena_;                 // of the capture that is under way
  std::set<Arena*> arenas_;                      // that one, and those that graphs and buffers keep
  std::thread::id capturing_;
};

}  // namespace lockstep

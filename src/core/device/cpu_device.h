// The CPU as a device: a caching allocator over aligned malloc, and streams whose work is always finished.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/core/device.h"

namespace lockstep {

// The CPU's kernels. This is the one function that core calls and does not define: kernels/cpu/cpu_table.cpp does. The
// kernels cannot register themselves, because a program takes an object of a static library only when it refers to it.
KernelTable cpu_kernels();

// Freed blocks are kept by size class (powers of two with three steps between them: at most 25 % waste) and reused, so
// that a training step requests no memory from the system.
class CachingAllocator {
 public:
  explicit CachingAllocator(Device& device) : device_(device) {}
  ~CachingAllocator();  // must run after its last buffer is freed
  Buffer allocate(std::size_t bytes);
  AllocatorStats stats() const;
  void empty_cache();

 private:
  static constexpr std::size_t kClasses = 256;
  void give_back(std::byte* block, std::size_t size_class);

  Device& device_;
  mutable std::mutex mutex_;
  std::array<std::vector<std::byte*>, kClasses> free_;
  AllocatorStats stats_;
  std::atomic<std::uint64_t> blocks_ = 0;  // taken from the system: decides where large ones begin
};

class CpuDevice : public Device {
 public:
  // Logical device `index`; if it is the only one, its name is "cpu".
  explicit CpuDevice(const KernelTable& kernels, int index = 0, bool single = true);
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  int index() const override { return index_; }
  std::string name() const override { return name_; }
  Buffer allocate(std::size_t bytes) override { return allocator_.allocate(bytes); }
  AllocatorStats allocator_stats() const override { return allocator_.stats(); }
  void empty_cache() override { allocator_.empty_cache(); }
  void copy(void* destination, const void* source, std::size_t bytes, Stream& stream) override;
  void upload(void* destination, const void* source, std::size_t bytes, Stream& stream) override {
    copy(destination, source, bytes, stream);
  }
  void begin_capture(Stream& stream) override;
  std::unique_ptr<Graph> end_capture(Stream& stream) override;
  Stream& default_stream() override { return *default_stream_; }
  std::unique_ptr<Stream> new_stream() override;
  std::unique_ptr<Event> new_event() override;
  const KernelTable& own_kernels() const override { return kernels_; }

 private:
  Buffer take_pinned(std::size_t bytes) override { return allocate(bytes); }

  const int index_;
  const std::string name_;
  KernelTable kernels_;
  CachingAllocator allocator_{*this};
  std::unique_ptr<Stream> default_stream_;
};

}  // namespace lockstep

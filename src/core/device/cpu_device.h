// The CPU as a device: a caching allocator over aligned malloc, streams that have always finished.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/core/device.h"

namespace lockstep {

// Kernel families that replace entries of the reference table; each lives in its folder below kernels/.
void use_fast_cpu_kernels(KernelTable& table);  // kernels/cpu: vector loops
void use_onednn_kernels(KernelTable& table);    // kernels/onednn: convolution, matrix products

// For a build without the latter: the table's first large convolution or product logs that it is slow, and the remedy.
void tell_of_slow_products(KernelTable& table);

// Freed blocks are kept by size class (powers of two with three steps between: at most 25 % waste) and handed out
// again, so that a training step asks the system for nothing.
class CachingAllocator {
 public:
  explicit CachingAllocator(Device& device) : device_(device) {}
  ~CachingAllocator();  // after its last buffer
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
};

class CpuDevice : public Device {
 public:
  // Logical device `index`; of a single one the name is "cpu".
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
  const KernelTable& kernels() const override { return kernels_; }

 private:
  Buffer take_pinned(std::size_t bytes) override { return allocate(bytes); }

  const int index_;
  const std::string name_;
  KernelTable kernels_;
  CachingAllocator allocator_{*this};
  std::unique_ptr<Stream> default_stream_;
};

}  // namespace lockstep

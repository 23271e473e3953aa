#include "src/core/device/cpu_device.h"

#include <malloc.h>
#include <sys/mman.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep {

namespace {

constexpr std::size_t kAlignment = 64;  // a cache line, and an AVX-512 vector
constexpr std::size_t kSmallest = 64;

// Large blocks begin at different cache lines of their pages. Blocks that all begin at the same one share the sets of
// the caches, and loops over three of them take a third longer. Blocks of several huge pages ask for those, which saves
// a tenth of such a loop's time.
constexpr std::size_t kPage = 4096, kHugePage = std::size_t{2} << 20;
constexpr std::size_t kLarge = std::size_t{64} << 10, kManyHugePages = 4 * kHugePage;

std::byte* allocate_block(std::size_t bytes, std::uint64_t number) {
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (rounded < kLarge) return static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
  constexpr std::size_t kStep = 5 * kAlignment, kPlaces = kPage / kStep;
  const bool is_huge = rounded >= kManyHugePages;
  const std::size_t alignment = is_huge ? kHugePage : kPage;
  auto* const base =
      static_cast<std::byte*>(std::aligned_alloc(alignment, (rounded + kPage + alignment - 1) / alignment * alignment));
  if (base == nullptr) return nullptr;
  // Only whole huge pages, so that no more memory is used. A system without them refuses, which changes nothing.
  if (is_huge) static_cast<void>(madvise(base, rounded / kHugePage * kHugePage, MADV_HUGEPAGE));
  return base + number % kPlaces * kStep;
}

void free_block(std::byte* block, std::size_t bytes) {
  const std::size_t offset = bytes < kLarge ? 0 : reinterpret_cast<std::uintptr_t>(block) % kPage;
  std::free(block - offset);
}

// Size classes: 64, 80, 96, 112, 128, 160, ...: four for each power of two.
struct SizeClass {
  std::size_t index;
  std::size_t bytes;
};

SizeClass size_class_of(std::size_t bytes) {
  if (bytes <= kSmallest) return {0, kSmallest};
  const std::size_t power = std::bit_width(bytes - 1) - 1;  // 2^power < bytes <= 2^(power+1)
  const std::size_t step = std::size_t{1} << (power - 2);
  const std::size_t quarter = (bytes - (std::size_t{1} << power) + step - 1) / step;  // 1..4
  return {(power - 6) * 4 + quarter, (std::size_t{1} << power) + quarter * step};
}

std::size_t bytes_of_class(std::size_t index) {
  if (index == 0) return kSmallest;
  const std::size_t power = (index - 1) / 4 + 6, quarter = (index - 1) % 4 + 1;
  return (std::size_t{1} << power) + quarter * (std::size_t{1} << (power - 2));
}

class CpuStream : public Stream {
 public:
  void synchronize() override {}
};

class CpuEvent : public Event {
 public:
  void record(Stream&) override {}
  void stream_wait(Stream&) override {}
  bool done() const override { return true; }
  void synchronize() override {}
};

}  // namespace

CachingAllocator::~CachingAllocator() {
  for (std::size_t index = 0; index < kClasses; ++index)
    for (std::byte* block : free_[index]) free_block(block, bytes_of_class(index));
}

Buffer CachingAllocator::allocate(std::size_t bytes) {
  const SizeClass size_class = size_class_of(bytes);
  LOCKSTEP_CHECK(size_class.index < kClasses, "allocation of {} bytes", bytes);
  std::byte* block = nullptr;
  {
    const std::lock_guard lock(mutex_);
    auto& cached = free_[size_class.index];
    if (!cached.empty()) {
      block = cached.back();
      cached.pop_back();
      ++stats_.cache_hits;
      stats_.bytes_in_use += size_class.bytes;
    }
  }
  if (block == nullptr) {
    block = allocate_block(size_class.bytes, blocks_++);
    const std::lock_guard lock(mutex_);
    if (block == nullptr)
      throw Error("cpu allocator: out of memory: {} bytes requested, {} in use, {} held, and the system has no more",
                  bytes, stats_.bytes_in_use, stats_.bytes_held);
    ++stats_.system_allocations;
    stats_.bytes_in_use += size_class.bytes;
    stats_.bytes_held += size_class.bytes;
  }
  return Buffer(block, bytes, &device_, [this, block, index = size_class.index] { give_back(block, index); });
}

void CachingAllocator::give_back(std::byte* block, std::size_t size_class) {
  const std::lock_guard lock(mutex_);
  stats_.bytes_in_use -= bytes_of_class(size_class);
  free_[size_class].push_back(block);
}

void CachingAllocator::empty_cache() {
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t index = 0; index < kClasses; ++index) {
      if (free_[index].empty()) continue;  // also the classes beyond the range of size_t
      stats_.bytes_held -= free_[index].size() * bytes_of_class(index);
      for (std::byte* block : free_[index]) free_block(block, bytes_of_class(index));
      free_[index].clear();
    }
  }
#ifdef __GLIBC__
  malloc_trim(0);  // free() keeps memory that lies between other blocks
#endif
}

AllocatorStats CachingAllocator::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

Buffer Device::allocate_pinned(std::size_t bytes) {
  const Buffer memory = take_pinned(bytes);
  return Buffer(memory.data(), bytes, &cpu_device(), [memory] {});
}

CpuDevice::CpuDevice(const KernelTable& kernels, int index, bool single)
    : index_(index),
      name_(single ? "cpu" : fmt::format("cpu:{}", index)),
      kernels_(kernels),
      default_stream_(std::make_unique<CpuStream>()) {}

void CpuDevice::copy(void* destination, const void* source, std::size_t bytes, Stream&) {
  if (bytes != 0) std::memcpy(destination, source, bytes);
}

void CpuDevice::begin_capture(Stream&) {
  throw InvalidArgument("cpu: work is done when its call returns, so there is nothing to record as a graph");
}
std::unique_ptr<Graph> CpuDevice::end_capture(Stream&) { throw InvalidArgument("cpu: no graph is being recorded"); }

std::unique_ptr<Stream> CpuDevice::new_stream() { return std::make_unique<CpuStream>(); }
std::unique_ptr<Event> CpuDevice::new_event() { return std::make_unique<CpuEvent>(); }

}  // namespace lockstep

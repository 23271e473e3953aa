#include "src/core/stream_allocator.h"

#include <algorithm>

#include "lockstep/core/error.h"

namespace lockstep {

namespace {

constexpr std::size_t kUnit = 512;                                // sizes are rounded up to it, as the driver does
constexpr std::size_t kLeftToLibraries = std::size_t{512} << 20;  // of "all": CUDA, NCCL and cuDNN take memory of their own

double mib(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

StreamAllocator::StreamAllocator(Device& device, MemoryPool& pool, const MemoryPolicy& policy)
    : device_(device), pool_(pool), policy_(policy) {
  if (policy_.kind != MemoryPolicy::Kind::kAll) return;
  const std::size_t free = pool_.free_on_device();
  if (policy_.bytes == 0) policy_.bytes = free > 2 * kLeftToLibraries ? free - kLeftToLibraries : free / 2;
  std::byte* const block = pool_.take(policy_.bytes);
  if (block == nullptr)
    throw Error(
        "{}: {:.0f} MiB were to be taken at the start, but only {:.0f} of its {:.0f} MiB are free: end what else uses it, or ask for less",
        device_.name(), mib(policy_.bytes), mib(free), mib(pool_.size_of_device()));
  pool_.give_back(block, policy_.bytes);  // the pool keeps it
  stats_.system_allocations = 1;
  stats_.bytes_held = pool_.held();
}

Buffer StreamAllocator::allocate(std::size_t bytes) {
  const std::size_t rounded = std::max<std::size_t>(1, (bytes + kUnit - 1) / kUnit) * kUnit;
  std::byte* block = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const bool within =
        policy_.kind == MemoryPolicy::Kind::kGrow || (rounded <= policy_.bytes && stats_.bytes_in_use <= policy_.bytes - rounded);
    if (within && rounded >= bytes) block = pool_.take(rounded);
    if (block == nullptr) report_exhausted(bytes);
    const std::size_t held = pool_.held();
    if (held > stats_.bytes_held)
      ++stats_.system_allocations;
    else
      ++stats_.cache_hits;
    stats_.bytes_held = held;
    stats_.bytes_in_use += rounded;
  }
  return Buffer(block, bytes, &device_, [this, block, rounded] { release(block, rounded); });
}

void StreamAllocator::release(std::byte* block, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  pool_.give_back(block, bytes);
  stats_.bytes_in_use -= bytes;
}

AllocatorStats StreamAllocator::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void StreamAllocator::report_exhausted(std::size_t bytes) const {
  const std::string limit = policy_.kind == MemoryPolicy::Kind::kGrow ? "" : fmt::format(", of at most {:.1f}", mib(policy_.bytes));
  throw Error(
      "{}: out of memory: {:.1f} MiB asked; this process uses {:.1f} MiB{} and holds {:.1f}; {:.1f} of the device's {:.1f} MiB are free. "
      "Use a "
      "smaller batch, or end what else uses the device",
      device_.name(), mib(bytes), mib(stats_.bytes_in_use), limit, mib(stats_.bytes_held), mib(pool_.free_on_device()),
      mib(pool_.size_of_device()));
}

}  // namespace lockstep

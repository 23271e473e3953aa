#include "src/core/memory/pinned_allocator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep {

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kLargestStaged = std::size_t{4} << 20;  // larger sources are copied directly, and waited for
// The limit of memory pinned by copies that the device has not made yet.
constexpr std::size_t kMostUnderWay = std::size_t{64} << 20;

}  // namespace

PinnedAllocator::~PinnedAllocator() {
  for (const auto& [bytes, block] : free_) source_.give_back(block);
}

Buffer PinnedAllocator::allocate(std::size_t bytes) {
  std::size_t size = std::max<std::size_t>(1, (bytes + kPage - 1) / kPage) * kPage;
  std::byte* block = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = free_.lower_bound(size); found != free_.end() && found->first <= size + size / 4) {
      size = found->first;
      block = found->second;
      free_.erase(found);
    }
  }
  if (block == nullptr) block = source_.take(size);
  if (block == nullptr)
    throw Error(
        "{}: {:.1f} MiB of pinned host memory are not available: use a smaller batch, or prefetch fewer batches",
        device_.name(), static_cast<double>(size) / (1 << 20));
  return Buffer(block, bytes, &device_, [this, block, size] { release(block, size); });
}

void PinnedAllocator::release(std::byte* block, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  free_.emplace(bytes, block);
}

void Uploader::upload(void* destination, const void* source, std::size_t bytes, Stream& stream) {
  if (bytes == 0) return;
  if (stream.is_capturing())
    throw InvalidArgument(
        "{}: {} bytes of host memory are copied to the device while a graph is recorded, which would repeat the same "
        "bytes: copy them "
        "into a tensor of the device before the step",
        device_.name(), bytes);
  if (bytes > kLargestStaged) {
    device_.copy(destination, source, bytes, stream);
    stream.synchronize();
    return;
  }
  const std::lock_guard lock(mutex_);
  retire();
  UnderWay next{pinned_.allocate(bytes), events_.empty() ? device_.new_event() : std::move(events_.back())};
  if (!events_.empty()) events_.pop_back();
  std::memcpy(next.memory.data(), source, bytes);
  device_.copy(destination, next.memory.data(), bytes, stream);
  next.copied->record(stream);
  bytes_under_way_ += bytes;
  under_way_.push_back(std::move(next));
}

void Uploader::retire() {
  while (!under_way_.empty()) {
    UnderWay& oldest = under_way_.front();
    if (bytes_under_way_ > kMostUnderWay)
      oldest.copied->synchronize();
    else if (!oldest.copied->done())
      return;
    bytes_under_way_ -= oldest.memory.bytes();
    events_.push_back(std::move(oldest.copied));
    under_way_.pop_front();
  }
}

}  // namespace lockstep

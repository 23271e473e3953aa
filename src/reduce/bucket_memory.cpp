#include "src/reduce/bucket_memory.h"

namespace lockstep {

namespace {

constexpr std::size_t kPage = 4096;  // buckets begin at pages, as if each had an allocation of its own
constexpr std::size_t kMostShared = std::size_t{512} << 20;

std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

std::size_t BucketMemory::bytes_of(const BucketLayout& layout) const {
  return slice_bytes(layout, group_.world_size()) * static_cast<std::size_t>(group_.world_size());
}

std::size_t BucketMemory::bytes_of_share() const {
  std::size_t share = 0;
  for (std::size_t b = next_; b < layouts_.size(); ++b) {
    if (layouts_[b].device != DeviceKind::kCuda) continue;
    const std::size_t bytes = whole_pages(bytes_of(layouts_[b]));
    if (share > 0 && share + bytes > kMostShared) break;
    share += bytes;
  }
  return share;
}

Buffer BucketMemory::next() {
  const BucketLayout& layout = layouts_[next_];
  const std::size_t bytes = bytes_of(layout);
  if (layout.device == DeviceKind::kCuda && used_ + bytes > shared_.bytes()) {
    shared_ = {};
    shared_ = group_.allocate(bytes_of_share(), DeviceKind::kCuda);
    used_ = 0;
  }
  ++next_;
  if (layout.device != DeviceKind::kCuda) return group_.allocate(bytes, layout.device);
  const Buffer bucket = shared_.window(used_, bytes);
  used_ += whole_pages(bytes);
  return bucket;
}

}  // namespace lockstep

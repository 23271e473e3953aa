#include "src/reduce/bucket_memory.h"

namespace lockstep {

namespace {

constexpr std::size_t kPage = 4096;  // buckets begin at pages, as if each had an allocation of its own

std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

std::vector<Buffer> allocate_buckets(ProcessGroup& group, const std::vector<BucketLayout>& layouts) {
  const auto bytes_of = [&](const BucketLayout& layout) {
    return slice_bytes(layout, group.world_size()) * static_cast<std::size_t>(group.world_size());
  };
  std::size_t on_gpu = 0;
  for (const BucketLayout& layout : layouts)
    if (layout.device == DeviceKind::kCuda) on_gpu += whole_pages(bytes_of(layout));
  const Buffer all = on_gpu > 0 ? group.allocate(on_gpu, DeviceKind::kCuda) : Buffer();
  std::vector<Buffer> buckets;
  buckets.reserve(layouts.size());
  std::size_t offset = 0;
  for (const BucketLayout& layout : layouts) {
    const std::size_t bytes = bytes_of(layout);
    if (layout.device != DeviceKind::kCuda) {
      buckets.push_back(group.allocate(bytes, layout.device));
      continue;
    }
    buckets.push_back(all.window(offset, bytes));
    offset += whole_pages(bytes);
  }
  return buckets;
}

}  // namespace lockstep

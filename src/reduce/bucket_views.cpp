#include "src/reduce/bucket_views.h"

#include <algorithm>
#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep {

namespace {

// FNV-1a over 8-byte words; buckets are full cache lines.
std::int64_t hash_of(const std::byte* data, std::size_t bytes) {
  std::uint64_t hash = 14695981039346656037u;
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= bytes; at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + at, sizeof(word));
    hash = (hash ^ word) * 1099511628211u;
    hash ^= hash >> 32;
  }
  return static_cast<std::int64_t>(hash >> 1);  // never negative
}

std::int64_t hash_of(ProcessGroup& group, const GradBucket& bucket) {
  const std::size_t bytes = bucket.count * size_of(bucket.dtype);
  if (bucket.device == DeviceKind::kCpu) return hash_of(static_cast<const std::byte*>(bucket.buffer), bytes);
  std::vector<std::byte> values(bytes);
  Device& device = group.local_device();
  device.copy(values.data(), bucket.buffer, bytes, device.default_stream());
  device.default_stream().synchronize();
  return hash_of(values.data(), bytes);
}

}  // namespace

BucketViews views_of(const std::vector<GradientInfo>& gradients, const std::vector<BucketLayout>& layouts) {
  BucketViews views;
  views.slots.resize(layouts.size());
  for (std::size_t b = 0; b < layouts.size(); ++b) {
    const BucketLayout& layout = layouts[b];
    for (const Slot& slot : layout.slots) {
      const GradientInfo& gradient = gradients[slot.gradient];
      const Shape flat{static_cast<std::int64_t>(gradient.count)};
      views.slots[b].push_back(
          {gradient.name, gradient.shape.dims() == 0 ? flat : gradient.shape, slot.offset / size_of(layout.dtype)});
    }
    views.buckets.push_back({.index = static_cast<int>(b),
                             .count = layout.bytes / size_of(layout.dtype),
                             .dtype = layout.dtype,
                             .device = layout.device,
                             .slots = views.slots[b],
                             .is_last = b + 1 == layouts.size()});
  }
  return views;
}

Work average(ProcessGroup& group, const GradBucket& bucket) {
  return group.all_reduce_async(bucket.buffer, bucket.count, bucket.dtype, ReduceOp::kAvg,
                                {.purpose = {"bucket", bucket.index}, .device = bucket.device});
}

Work CommHook::operator()(ProcessGroup& group, const GradBucket& bucket) const {
  return hook_ ? hook_->reduce(group, bucket) : average(group, bucket);
}

void check_is_reduced_alike(ProcessGroup& group, std::span<const GradBucket> buckets) {
  std::vector<std::int64_t> own, extremes;
  for (const GradBucket& bucket : buckets) own.push_back(hash_of(group, bucket));
  for (const std::int64_t hash : own) extremes.insert(extremes.end(), {hash, -hash});
  group.all_reduce(extremes.data(), extremes.size(), DType::kInt64, ReduceOp::kMax, {.purpose = {"comm hook check"}});
  const auto differs = [&](std::size_t b) { return extremes[2 * b] != -extremes[2 * b + 1]; };
  std::size_t first = 0;
  while (first < buckets.size() && !differs(first)) ++first;
  if (first == buckets.size()) return;
  std::vector<std::int64_t> all(static_cast<std::size_t>(group.world_size()));
  group.all_gather(&own[first], all.data(), 1, DType::kInt64, {.purpose = {"comm hook check"}});
  const auto other = std::find_if(all.begin(), all.end(), [&](std::int64_t hash) { return hash != all.front(); });
  throw MismatchError(
      "comm hook: bucket {} ('{}', ...): the values of rank {} differ from those of rank 0 after the reduction: the "
      "hook must leave the average with the same bits on all ranks, and its Work must not be done earlier (chain later "
      "work with Work::then())",
      buckets[first].index, buckets[first].slots.front().name, other - all.begin());
}

}  // namespace lockstep

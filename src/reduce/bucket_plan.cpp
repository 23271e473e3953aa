#include "lockstep/reduce/bucket_plan.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep {

namespace {

constexpr std::size_t kSlotAlignment = 64;

std::size_t rounded_up(std::size_t bytes) { return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment; }

struct OpenBucket {
  BucketLayout layout;
  std::size_t cap = 0;
};

}  // namespace

std::vector<BucketLayout> plan_buckets(std::span<const GradientInfo> gradients, const BucketCaps& caps) {
  if (caps.first_bucket_bytes == 0 || caps.bucket_bytes == 0) throw InvalidArgument("bucket plan: the caps must be positive");
  std::map<std::pair<DType, DeviceKind>, OpenBucket> open;
  std::vector<BucketLayout> plan;
  for (std::size_t i = gradients.size(); i-- > 0;) {
    const GradientInfo& gradient = gradients[i];
    const auto [entry, is_first] = open.try_emplace({gradient.dtype, gradient.device});
    OpenBucket& bucket = entry->second;
    if (is_first) bucket.cap = caps.first_bucket_bytes;
    if (bucket.layout.slots.empty()) bucket.layout = {.slots = {}, .bytes = 0, .dtype = gradient.dtype, .device = gradient.device};
    bucket.layout.slots.push_back({i, bucket.layout.bytes});
    bucket.layout.bytes += rounded_up(gradient.bytes());
    if (bucket.layout.bytes >= bucket.cap) {
      plan.push_back(std::exchange(bucket.layout, {}));
      bucket.cap = caps.bucket_bytes;
    }
  }
  for (auto& [key, bucket] : open)
    if (!bucket.layout.slots.empty()) plan.push_back(std::move(bucket.layout));
  // Gradients come from the highest index down: the bucket whose last gradient has the highest index is full first.
  std::stable_sort(plan.begin(), plan.end(),
                   [](const BucketLayout& a, const BucketLayout& b) { return a.slots.back().gradient > b.slots.back().gradient; });
  return plan;
}

}  // namespace lockstep

#include "lockstep/reduce/bucket_plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep {

namespace {

constexpr std::size_t kSlotAlignment = 64;

std::size_t rounded_up(std::size_t bytes) { return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment; }

struct OpenBucket {
  BucketLayout layout;
  std::size_t closed = 0;  // number of buckets of its kind before it
};

// Returns each gradient's position in the order.
std::vector<std::size_t> places_in(std::span<const std::size_t> order, std::size_t gradients) {
  std::vector<std::size_t> places(gradients, gradients);
  for (std::size_t place = 0; place < order.size(); ++place)
    if (order[place] < gradients) places[order[place]] = place;
  if (order.size() != gradients || std::find(places.begin(), places.end(), gradients) != places.end())
    throw InvalidArgument("bucket plan: got an order of {} gradients; it must have each of the {} gradients once",
                          order.size(), gradients);
  return places;
}

}  // namespace

std::size_t slice_bytes(const BucketLayout& bucket, int ranks) {
  const auto slices = static_cast<std::size_t>(ranks);
  return rounded_up((bucket.bytes + slices - 1) / slices);
}

std::vector<BucketLayout> plan_buckets(std::span<const GradientInfo> gradients, const BucketCaps& caps) {
  std::vector<std::size_t> order(gradients.size());
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  return plan_buckets(gradients, caps, order);
}

std::vector<BucketLayout> plan_buckets(std::span<const GradientInfo> gradients, const BucketCaps& caps,
                                       std::span<const std::size_t> order) {
  if (caps.empty() || std::find(caps.begin(), caps.end(), 0) != caps.end())
    throw InvalidArgument("bucket plan: expected at least one cap, all above 0");
  const std::vector<std::size_t> place = places_in(order, gradients.size());
  std::map<std::tuple<bool, DType, DeviceKind>, OpenBucket> open;
  std::vector<BucketLayout> plan;
  for (const std::size_t i : order) {
    const GradientInfo& gradient = gradients[i];
    OpenBucket& bucket = open[{gradient.delayed, gradient.dtype, gradient.device}];
    if (bucket.layout.slots.empty())
      bucket.layout = {.slots = {}, .bytes = 0, .dtype = gradient.dtype, .device = gradient.device};
    bucket.layout.slots.push_back({i, bucket.layout.bytes});
    bucket.layout.bytes += rounded_up(gradient.bytes());
    if (bucket.layout.bytes >= caps[std::min(bucket.closed, caps.size() - 1)]) {
      plan.push_back(std::exchange(bucket.layout, {}));
      ++bucket.closed;
    }
  }
  for (auto& [key, bucket] : open)
    if (!bucket.layout.slots.empty()) plan.push_back(std::move(bucket.layout));
  // The bucket whose last gradient becomes ready first is full first.
  const auto full_at = [&](const BucketLayout& bucket) {
    const std::size_t last = bucket.slots.back().gradient;
    return std::pair(gradients[last].delayed, place[last]);
  };
  std::stable_sort(plan.begin(), plan.end(),
                   [&](const BucketLayout& a, const BucketLayout& b) { return full_at(a) < full_at(b); });
  return plan;
}

}  // namespace lockstep

#include "src/train/events/histogram.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "lockstep/core/error.h"
#include "src/core/base/half.h"

namespace lockstep::train::events {

namespace {

constexpr double kSmallestLimit = 1e-12, kGrowth = 1.1, kLargestLimit = 1e20;

// Computed by repeated multiplication, as in tensorflow/core/lib/histogram/histogram.cc.
std::vector<double> exponential_limits() {
  std::vector<double> positive;
  for (double limit = kSmallestLimit; limit < kLargestLimit; limit *= kGrowth) positive.push_back(limit);
  positive.push_back(std::numeric_limits<double>::max());
  std::vector<double> limits;
  for (auto limit = positive.rbegin(); limit != positive.rend(); ++limit) limits.push_back(-*limit);
  limits.push_back(0);
  for (const double limit : positive) limits.push_back(limit);  // not insert(): GCC 14 warns of an overflow there
  return limits;
}

// The last limit is max, which belongs to the last bucket. A width that is 0 or not finite gives one bucket.
std::vector<double> equal_limits(double min, double max, int buckets) {
  const double width = max / buckets - min / buckets;
  std::vector<double> limits;
  if (width > 0)
    for (int i = 1; i < buckets; ++i)
      if (const double limit = min + width * i; limit < max && limit > (limits.empty() ? min : limits.back()))
        limits.push_back(limit);
  limits.push_back(max);
  return limits;
}

// Returns the first bucket that ends above the value; the last bucket includes its limit.
std::size_t bucket_of(std::span<const double> limits, double value) {
  const auto at = static_cast<std::size_t>(std::upper_bound(limits.begin(), limits.end(), value) - limits.begin());
  return std::min(at, limits.size() - 1);
}

// Drops the empty buckets at both ends and merges consecutive ones.
void keep_filled(Histogram& histogram, std::span<const double> limits, std::span<const std::int64_t> counts) {
  const auto is_filled = [](std::int64_t count) { return count > 0; };
  const auto first = static_cast<std::size_t>(std::find_if(counts.begin(), counts.end(), is_filled) - counts.begin());
  const auto end = static_cast<std::size_t>(counts.rend() - std::find_if(counts.rbegin(), counts.rend(), is_filled));
  for (std::size_t i = first; i < end; ++i) {
    if (counts[i] == 0 && counts[i - 1] == 0) {
      histogram.limits.back() = limits[i];
      continue;
    }
    histogram.limits.push_back(limits[i]);
    histogram.counts.push_back(static_cast<double>(counts[i]));
  }
}

template <typename T, typename ToNumber>
void visit_as(const Tensor& tensor, const std::function<void(double)>& visit, ToNumber to_number) {
  const auto* values = reinterpret_cast<const T*>(tensor.buffer().data());
  for (std::int64_t i = 0; i < tensor.count(); ++i) visit(to_number(values[i]));
}

}  // namespace

void for_each_number(const Tensor& tensor, const std::function<void(double)>& visit) {
  const auto plain = [](auto value) { return static_cast<double>(value); };
  const auto widened = [](auto value) { return static_cast<double>(widen(value)); };
  switch (tensor.dtype()) {
    case DType::kFloat32: return visit_as<float>(tensor, visit, plain);
    case DType::kFloat64: return visit_as<double>(tensor, visit, plain);
    case DType::kFloat16: return visit_as<Float16>(tensor, visit, widened);
    case DType::kBFloat16: return visit_as<BFloat16>(tensor, visit, widened);
    case DType::kInt8: return visit_as<std::int8_t>(tensor, visit, plain);
    case DType::kUInt8: return visit_as<std::uint8_t>(tensor, visit, plain);
    case DType::kInt32: return visit_as<std::int32_t>(tensor, visit, plain);
    case DType::kInt64: return visit_as<std::int64_t>(tensor, visit, plain);
  }
}

Histogram histogram_of(const Tensor& values, int buckets) {
  Histogram histogram;
  histogram.min = std::numeric_limits<double>::infinity();
  histogram.max = -histogram.min;
  for_each_number(values, [&](double value) {
    if (!std::isfinite(value)) {
      ++histogram.not_finite;
      return;
    }
    ++histogram.finite;
    histogram.min = std::min(histogram.min, value);
    histogram.max = std::max(histogram.max, value);
    histogram.sum += value;
    histogram.sum_of_squares += value * value;
  });
  if (histogram.finite == 0) {
    histogram.min = histogram.max = 0;
    return histogram;
  }
  static const std::vector<double> kExponential = exponential_limits();
  const std::vector<double> limits = buckets == 0 ? kExponential : equal_limits(histogram.min, histogram.max, buckets);
  std::vector<std::int64_t> counts(limits.size());
  for_each_number(values, [&](double value) {
    if (std::isfinite(value)) ++counts[bucket_of(limits, value)];
  });
  keep_filled(histogram, limits, counts);
  return histogram;
}

}  // namespace lockstep::train::events

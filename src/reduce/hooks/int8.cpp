// float32 buckets as int8, in blocks with a scale each.
//
// A bucket of `count` values is cut into blocks; each rank owns a slice of S = ceil(blocks / ranks) of them. A slice travels as S scales
// and S blocks of int8. One all_to_all takes every rank's slices to their owners, who sum them in float32, in rank order, and round the
// average to int8 again; one all_gather takes it to all: 2 (n - 1) / n of the slices' bytes, as an all-reduce of int8 would.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "lockstep/reduce/hooks.h"
#include "src/reduce/hooks/hook_parts.h"

namespace lockstep::hooks {

namespace {

constexpr float kLargest = 127;
constexpr std::uint32_t kInfinity = 0x7f800000;
// A largest magnitude below this counts as zero: 127 / it would overflow.
constexpr float kSmallest = 1e-36f;

struct Int8Job {
  float* values = nullptr;
  std::size_t count = 0, block = 0, slice_blocks = 0;  // of a slice
  std::size_t ranks = 1, rank = 0;
  Buffer own, received;        // `ranks` slices each; the averages are gathered in `own`
  std::vector<float> average;  // of this rank's slice

  std::size_t slice_bytes() const { return slice_blocks * (sizeof(float) + block); }
  std::size_t slice_values() const { return slice_blocks * block; }
  std::byte* slice(const Buffer& slices, std::size_t rank_of_slice) const { return slices.data() + rank_of_slice * slice_bytes(); }
};

// Largest magnitude, as its bits: NaN is above infinity, which is above all numbers.
std::uint32_t largest_bits(const float* values, std::size_t count) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

// To nearest, ties to even: 1.5 * 2^23 + x has the integer in its last bits.
void quantise_block(const float* values, std::size_t count, std::size_t block, float& scale, std::int8_t* out) {
  const std::uint32_t bits = largest_bits(values, count);
  const float largest = std::bit_cast<float>(bits);
  const bool is_finite = bits < kInfinity, is_zero = largest < kSmallest;
  scale = !is_finite ? std::numeric_limits<float>::quiet_NaN() : is_zero ? 0 : largest / kLargest;
  const float factor = !is_finite || is_zero ? 0 : kLargest / largest;
  std::memset(out + count, 0, block - count);
  if (!is_finite) {  // zeros stay zero: padding must
    for (std::size_t i = 0; i < count; ++i) out[i] = values[i] != 0 ? 1 : 0;
    return;
  }
  for (std::size_t i = 0; i < count; ++i)
    out[i] = static_cast<std::int8_t>(std::bit_cast<std::uint32_t>(values[i] * factor + 12582912.0f) - 0x4b400000u);
}

// `values` is of `count` elements, maybe fewer than the slice's: the rest is zero.
void quantise_slice(const Int8Job& job, const float* values, std::size_t count, std::byte* slice) {
  auto* const scales = reinterpret_cast<float*>(slice);
  auto* const numbers = reinterpret_cast<std::int8_t*>(slice + job.slice_blocks * sizeof(float));
  for (std::size_t b = 0; b < job.slice_blocks; ++b) {
    const std::size_t begin = std::min(count, b * job.block);
    quantise_block(values + begin, std::min(job.block, count - begin), job.block, scales[b], numbers + b * job.block);
  }
}

// values = or += factor * slice
void expand_slice(const Int8Job& job, const std::byte* slice, float* values, std::size_t count, float factor, bool adds) {
  const auto* const scales = reinterpret_cast<const float*>(slice);
  const auto* const numbers = reinterpret_cast<const std::int8_t*>(slice + job.slice_blocks * sizeof(float));
  for (std::size_t b = 0; b * job.block < count; ++b) {
    const std::size_t begin = b * job.block, end = std::min(count, begin + job.block);
    const float scale = scales[b] * factor;
    if (!adds) std::memset(values + begin, 0, (end - begin) * sizeof(float));
    if (std::isnan(scale)) {
      for (std::size_t i = begin; i < end; ++i) values[i] = numbers[i] != 0 ? scale : values[i];
      continue;
    }
    for (std::size_t i = begin; i < end; ++i) values[i] += scale * static_cast<float>(numbers[i]);
  }
}

std::size_t values_of_slice(const Int8Job& job, std::size_t slice) {
  const std::size_t begin = std::min(job.count, slice * job.slice_values());
  return std::min(job.slice_values(), job.count - begin);
}

void compress(const Int8Job& job) {
  for (std::size_t r = 0; r < job.ranks; ++r)
    quantise_slice(job, job.values + std::min(job.count, r * job.slice_values()), values_of_slice(job, r), job.slice(job.own, r));
}

void sum_own_slice(Int8Job& job) {
  const float share = 1 / static_cast<float>(job.ranks);
  for (std::size_t r = 0; r < job.ranks; ++r)
    expand_slice(job, job.slice(job.received, r), job.average.data(), job.slice_values(), share, r != 0);
  quantise_slice(job, job.average.data(), job.slice_values(), job.slice(job.own, job.rank));
}

void expand(const Int8Job& job) {
  for (std::size_t r = 0; r < job.ranks; ++r)
    expand_slice(job, job.slice(job.own, r), job.values + std::min(job.count, r * job.slice_values()), values_of_slice(job, r), 1, false);
}

class Int8Hook : public BucketHook {
 public:
  explicit Int8Hook(const Int8Options& options) : block_(options.block) {}

  std::string describe() const override { return fmt::format("int8 (block {})", block_); }
  std::string refusal(std::span<const GradientInfo> gradients) const override {
    if (block_ == 0 || block_ % 16 != 0) return fmt::format("comm_hook int8: a block of {} values; expected a multiple of 16", block_);
    return refusal_of_gradients("int8", gradients);
  }
  bool sends_any_message() const override { return true; }

  Work reduce(ProcessGroup& group, const GradBucket& bucket) override {
    Int8Job* const job = &jobs_.of(group, bucket);
    job->values = static_cast<float*>(bucket.buffer);
    job->count = bucket.count;
    job->block = block_;
    job->ranks = static_cast<std::size_t>(group.world_size());
    job->rank = static_cast<std::size_t>(group.rank());
    const std::size_t blocks = (bucket.count + block_ - 1) / block_;
    job->slice_blocks = (blocks + job->ranks - 1) / job->ranks;
    resize(job->own, group, job->ranks * job->slice_bytes(), bucket.device);
    resize(job->received, group, job->ranks * job->slice_bytes(), bucket.device);
    job->average.resize(job->slice_values());
    const CallOptions call{.purpose = purpose_of(bucket), .device = bucket.device};
    group.compute_async([job](Stream&) { compress(*job); });
    const Work slices = group.all_to_all_async(job->own.data(), job->received.data(), job->slice_bytes(), DType::kUInt8, call);
    slices.then([job](Stream&) { sum_own_slice(*job); });
    const Work averages = group.all_gather_async(job->slice(job->own, job->rank), job->own.data(), job->slice_bytes(), DType::kUInt8, call);
    return averages.then([job](Stream&) { expand(*job); });
  }

 private:
  const std::size_t block_;
  Jobs<Int8Job> jobs_;
};

}  // namespace

CommHook int8(const Int8Options& options) { return std::make_shared<Int8Hook>(options); }

}  // namespace lockstep::hooks

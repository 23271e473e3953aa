// Sends float32 buckets as int8, in blocks with one scale each.
//
// A bucket of `count` values is cut into blocks; each rank owns a slice of S = ceil(blocks / ranks) blocks. A slice is
// sent as S scales and S blocks of int8. An all_to_all brings every rank's slices to their owners, which sum them in
// float32 in rank order and round the average to int8 again. An all_gather then distributes it: 2 (n - 1) / n of the
// slices' bytes, as in an all-reduce of int8.
#include <fmt/format.h>

#include "lockstep/reduce/compression_kernels.h"
#include "lockstep/reduce/hooks.h"
#include "src/reduce/hooks/hook_parts.h"

namespace lockstep::hooks {

namespace {

struct Int8Job {
  const Int8Kernels* kernels = nullptr;
  float* values = nullptr;
  Int8Slices all, own_slice;  // of the bucket; of this rank's average
  std::int64_t rank = 0;
  Buffer own, received;  // `own` has a slice for each rank and then receives the gathered averages
  Buffer average;        // of this rank's slice

  std::byte* rank_slice() const { return own.data() + rank * all.slice_bytes(); }
};

void compress(const Int8Job& job, Stream& stream) {
  job.kernels->quantise(job.all, job.values, job.own.data(), stream);
}

void average_own_slice(const Int8Job& job, Stream& stream) {
  auto* const average = reinterpret_cast<float*>(job.average.data());
  job.kernels->average(job.all, job.received.data(), average, stream);
  job.kernels->quantise(job.own_slice, average, job.rank_slice(), stream);
}

void expand(const Int8Job& job, Stream& stream) { job.kernels->expand(job.all, job.own.data(), job.values, stream); }

class Int8Hook : public BucketHook {
 public:
  explicit Int8Hook(const Int8Options& options) : block_(options.block) {}

  std::string describe() const override { return fmt::format("int8 (block {})", block_); }
  std::string refusal(std::span<const GradientInfo> gradients) const override {
    if (block_ == 0 || block_ % 16 != 0)
      return fmt::format("comm_hook int8: got a block of {} values, expected a multiple of 16", block_);
    return refusal_of_gradients("int8", gradients);
  }
  bool sends_any_message() const override { return true; }
  bool can_be_captured() const override { return true; }

  Work reduce(ProcessGroup& group, const GradBucket& bucket) override {
    Int8Job* const job = &jobs_.of(group, bucket);
    Device& device = device_of(group, bucket.device);
    const std::int64_t ranks = group.world_size(), block = static_cast<std::int64_t>(block_),
                       count = static_cast<std::int64_t>(bucket.count);
    const std::int64_t blocks = (count + block - 1) / block;
    job->kernels = &device.kernels().families.get<Int8Kernels>();
    job->values = static_cast<float*>(bucket.buffer);
    job->all = {ranks, (blocks + ranks - 1) / ranks, block, count};
    job->own_slice = {1, job->all.slice_blocks, block, job->all.slice_values()};
    job->rank = group.rank();
    const auto slice_bytes = static_cast<std::size_t>(job->all.slice_bytes());
    resize(job->own, group, static_cast<std::size_t>(ranks) * slice_bytes, bucket.device);
    resize(job->received, group, static_cast<std::size_t>(ranks) * slice_bytes, bucket.device);
    resize(job->average, device, static_cast<std::size_t>(job->all.slice_values()) * sizeof(float));
    const CallOptions call{.purpose = purpose_of(bucket), .device = bucket.device};
    group.compute_async([job](Stream& stream) { compress(*job, stream); }, bucket.device);
    const Work slices = group.all_to_all_async(job->own.data(), job->received.data(), slice_bytes, DType::kUInt8, call);
    slices.then([job](Stream& stream) { average_own_slice(*job, stream); });
    const Work averages = group.all_gather_async(job->rank_slice(), job->own.data(), slice_bytes, DType::kUInt8, call);
    return averages.then([job](Stream& stream) { expand(*job, stream); });
  }

 private:
  const std::size_t block_;
  Jobs<Int8Job> jobs_;
};

}  // namespace

CommHook int8(const Int8Options& options) { return std::make_shared<Int8Hook>(options); }

}  // namespace lockstep::hooks

#include "src/reduce/wide_average.h"

namespace lockstep {

bool WideAverage::is_for(const ProcessGroup& group, const GradBucket& bucket) {
  if (bucket.device == DeviceKind::kCpu) return false;
  return (bucket.dtype == DType::kFloat16 && group.world_size() > 1) ||
         (bucket.dtype == DType::kBFloat16 && group.world_size() > 2);
}

void WideAverage::Job::average_slice(Stream& stream) const {
  const Shape shape{slice};
  const std::size_t bytes = static_cast<std::size_t>(slice) * size_of(dtype);
  const OutputView total(sum.data(), DType::kFloat32, shape);
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    kernels->convert({received.data() + static_cast<std::size_t>(rank) * bytes, dtype, shape},
                     {sum.data(), DType::kFloat32, shape, /*accumulate=*/rank > 0}, stream);
  kernels->scale(total, 1 / static_cast<float>(ranks), total, stream);
  kernels->convert(total, {own, dtype, shape}, stream);
}

Work WideAverage::start(ProcessGroup& group, const GradBucket& bucket, std::size_t slice) {
  Job* const job = &jobs_.of(group, bucket);
  Device& device = hooks::device_of(group, bucket.device);
  const std::size_t bytes = slice * size_of(bucket.dtype), ranks = static_cast<std::size_t>(group.world_size());
  job->kernels = &device.kernels();
  job->dtype = bucket.dtype;
  job->own = static_cast<std::byte*>(bucket.buffer) + static_cast<std::size_t>(group.rank()) * bytes;
  job->slice = static_cast<std::int64_t>(slice);
  job->ranks = group.world_size();
  hooks::resize(job->received, group, ranks * bytes, bucket.device);
  hooks::resize(job->sum, device, slice * sizeof(float));
  const CallOptions call{.purpose = hooks::purpose_of(bucket), .device = bucket.device};
  const Work slices = group.all_to_all_async(bucket.buffer, job->received.data(), slice, bucket.dtype, call);
  slices.then([job](Stream& stream) { job->average_slice(stream); });
  return group.all_gather_async(job->own, bucket.buffer, slice, bucket.dtype, call);
}

}  // namespace lockstep

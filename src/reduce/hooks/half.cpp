// Sends float32 buckets as bfloat16 or float16: half the bytes.
#include <fmt/format.h>

#include "lockstep/reduce/hooks.h"
#include "src/reduce/hooks/hook_parts.h"

namespace lockstep::hooks {

namespace {

struct HalfJob {
  const KernelTable* kernels = nullptr;
  float* values = nullptr;
  Buffer half;
  std::int64_t count = 0;
  DType dtype = DType::kBFloat16;
  float factor = 1;

  Shape shape() const { return {count}; }
};

class HalfHook : public BucketHook {
 public:
  HalfHook(DType dtype, CommHook next)
      : dtype_(dtype), name_(dtype == DType::kBFloat16 ? "bf16" : "fp16"), next_(std::move(next)) {}

  std::string describe() const override { return name_ + over(next_); }
  std::string refusal(std::span<const GradientInfo> gradients) const override {
    std::vector<GradientInfo> halves(gradients.begin(), gradients.end());
    for (GradientInfo& gradient : halves) {
      if (gradient.dtype == DType::kFloat64)
        return fmt::format("comm_hook {}: it compresses float32, but the gradient of '{}' is float64", name_,
                           gradient.name);
      if (gradient.dtype == DType::kFloat32) gradient.dtype = dtype_;
    }
    return refusal_of_next(next_, name_.c_str(), halves, false);
  }
  void prepare(const ProcessGroup& group, std::span<const GradientInfo> gradients) override {
    if (next_) next_->prepare(group, gradients);
  }
  void undo(std::string_view parameter) override {
    if (next_) next_->undo(parameter);
  }
  std::vector<HookState> state() override { return next_ ? next_->state() : std::vector<HookState>(); }
  bool sends_any_message() const override { return true; }
  bool can_be_captured() const override { return !next_ || next_->can_be_captured(); }

  Work reduce(ProcessGroup& group, const GradBucket& bucket) override {
    if (bucket.dtype != DType::kFloat32) return next_(group, bucket);
    HalfJob* const job = &jobs_.of(group, bucket);
    resize(job->half, group, bucket.count * size_of(dtype_), bucket.device);
    job->kernels = &device_of(group, bucket.device).kernels();
    job->values = static_cast<float*>(bucket.buffer);
    job->count = static_cast<std::int64_t>(bucket.count);
    job->dtype = dtype_;
    const bool divides = dtype_ == DType::kFloat16 && !next_;
    job->factor = divides ? 1 / static_cast<float>(group.world_size()) : 1;
    group.compute_async(
        [job](Stream& stream) {
          if (job->factor != 1)
            job->kernels->scale({job->values, job->shape()}, job->factor, {job->values, job->shape()}, stream);
          job->kernels->convert({job->values, DType::kFloat32, job->shape()},
                                {job->half.data(), job->dtype, job->shape()}, stream);
        },
        bucket.device);
    GradBucket half = bucket;
    half.buffer = job->half.data();
    half.dtype = dtype_;
    const Work sum = divides ? group.all_reduce_async(half.buffer, half.count, half.dtype, ReduceOp::kSum,
                                                      {.purpose = purpose_of(bucket), .device = bucket.device})
                             : next_(group, half);
    return sum.then([job](Stream& stream) {
      job->kernels->convert({job->half.data(), job->dtype, job->shape()}, {job->values, DType::kFloat32, job->shape()},
                            stream);
    });
  }

 private:
  const DType dtype_;
  const std::string name_;
  const CommHook next_;
  Jobs<HalfJob> jobs_;
};

}  // namespace

CommHook bf16(CommHook next) { return std::make_shared<HalfHook>(DType::kBFloat16, std::move(next)); }
CommHook fp16(CommHook next) { return std::make_shared<HalfHook>(DType::kFloat16, std::move(next)); }

}  // namespace lockstep::hooks

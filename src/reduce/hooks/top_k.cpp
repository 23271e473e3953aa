// Sends the largest magnitudes of each rank's gradients with their positions (Lin et al. 2018; error feedback: Stich et
// al. 2018).
//
// A bucket's message is K positions in the bucket, then K values, where K is the sum of ceil(ratio * count) over its
// parameters. One all_gather distributes all messages; each rank adds them in rank order, so all have the same bits.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/core/error.h"
#include "lockstep/reduce/compression_kernels.h"
#include "lockstep/reduce/hooks.h"
#include "src/reduce/hooks/gradient_memory.h"
#include "src/reduce/hooks/hook_parts.h"

namespace lockstep::hooks {

namespace {

struct TopKMemory {
  StateFloats error;  // empty without error feedback
  StateBefore error_before;
};

// A parameter's position in the bucket, for fits().
struct TopKPlace {
  std::string name;
  std::size_t offset = 0;
  TopKMemory* memory = nullptr;
};

struct TopKJob {
  Device* device = nullptr;
  const TopKKernels* kernels = nullptr;
  float* values = nullptr;
  std::vector<TopKPlace> places;
  std::vector<TopKPart> parts;
  TopKMessages messages;
  Buffer own, gathered;

  std::size_t message_bytes() const {
    return static_cast<std::size_t>(messages.kept) * (sizeof(std::uint32_t) + sizeof(float));
  }
};

void compress(const TopKJob& job, Stream& stream) {
  for (const TopKPlace& place : job.places) place.memory->error_before.keep(place.memory->error, *job.device, stream);
  auto* const places = reinterpret_cast<std::uint32_t*>(job.own.data());
  job.kernels->select(job.parts, job.values, places, reinterpret_cast<float*>(places + job.messages.kept), stream);
}

void expand(const TopKJob& job, Stream& stream) {
  job.kernels->expand(job.messages, job.gathered.data(), job.values, stream);
}

class TopKHook : public BucketHook {
 public:
  explicit TopKHook(const TopKOptions& options) : options_(options) {}

  std::string describe() const override {
    return fmt::format("top_k (ratio {}, error_feedback {})", options_.ratio, options_.error_feedback);
  }
  std::string refusal(std::span<const GradientInfo> gradients) const override {
    if (!(options_.ratio > 0) || !(options_.ratio <= 1))
      return fmt::format("comm_hook top_k: got ratio {}, expected a number above 0 and at most 1", options_.ratio);
    for (const GradientInfo& gradient : gradients)
      if (gradient.count > std::size_t{1} << 31)
        return fmt::format("comm_hook top_k: '{}' has more than 2^31 elements, the most that it supports",
                           gradient.name);
    return refusal_of_gradients("top_k", gradients);
  }
  void prepare(const ProcessGroup& group, std::span<const GradientInfo> gradients) override {
    jobs_.clear();  // jobs of a former wrapper point to the memory of its parameters
    memory_.prepare(group, gradients, [this](TopKMemory& memory, const GradientInfo& gradient, Device& device) {
      if (options_.error_feedback) memory.error = StateFloats(device, gradient.count);
    });
  }
  void undo(std::string_view parameter) override {
    TopKMemory& memory = memory_.of(parameter);
    memory.error_before.restore(memory.error, memory_.device_of(parameter));
  }
  std::vector<HookState> state() override {
    std::vector<HookState> all;
    memory_.for_each(
        [&](const std::string& name, TopKMemory& memory) { memory.error.append_to(all, "top_k.error." + name, true); });
    return all;
  }
  bool can_be_captured() const override { return true; }

  Work reduce(ProcessGroup& group, const GradBucket& bucket) override {
    TopKJob* const job = &jobs_.of(group, bucket);
    job->device = &device_of(group, bucket.device);
    job->kernels = &job->device->kernels().families.get<TopKKernels>();
    job->values = static_cast<float*>(bucket.buffer);
    if (!fits(job->places, bucket)) plan(*job, bucket);
    for (std::size_t s = 0; s < job->places.size(); ++s) {
      TopKMemory& memory = *job->places[s].memory;
      memory.error_before.begin(memory.error, *job->device, !bucket.slots[s].has_gradient);
    }
    job->messages.senders = group.world_size();
    job->messages.count = static_cast<std::int64_t>(bucket.count);
    resize(job->own, group, job->message_bytes(), bucket.device);
    resize(job->gathered, group, static_cast<std::size_t>(group.world_size()) * job->message_bytes(), bucket.device);
    group.compute_async([job](Stream& stream) { compress(*job, stream); }, bucket.device);
    const Work all = group.all_gather_async(job->own.data(), job->gathered.data(), job->message_bytes(), DType::kUInt8,
                                            {.purpose = purpose_of(bucket), .device = bucket.device});
    return all.then([job](Stream& stream) { expand(*job, stream); });
  }

 private:
  void plan(TopKJob& job, const GradBucket& bucket) {
    if (bucket.count > std::numeric_limits<std::uint32_t>::max())
      throw InvalidArgument(
          "comm hook top_k: bucket {} has {} elements, but at most {} are supported: use a smaller bucket_cap_mb",
          bucket.index, bucket.count, std::numeric_limits<std::uint32_t>::max());
    job.places.clear();
    job.parts.clear();
    job.messages.kept = 0;
    for (const GradSlot& slot : bucket.slots) {
      const std::int64_t count = slot.shape.count();
      const auto kept =
          std::min(count, static_cast<std::int64_t>(std::ceil(options_.ratio * static_cast<double>(count))));
      TopKMemory& memory = memory_.of(slot.name);
      job.places.push_back({std::string(slot.name), slot.offset, &memory});
      job.parts.push_back({static_cast<std::int64_t>(slot.offset), count, kept, memory.error.data()});
      job.messages.kept += kept;
    }
  }

  const TopKOptions options_;
  ByParameter<TopKMemory> memory_;
  Jobs<TopKJob> jobs_;
};

}  // namespace

CommHook top_k(const TopKOptions& options) { return std::make_shared<TopKHook>(options); }

}  // namespace lockstep::hooks

// The largest magnitudes of each rank's gradients, with their places (Lin et al. 2018; error feedback: Stich et al. 2018).
//
// A bucket's message: K places in the bucket, then K values, K the sum over its parameters of ceil(ratio * count). One all_gather takes
// every rank's message to all; each adds them up in rank order, so that all have the same bits.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "lockstep/core/error.h"
#include "lockstep/reduce/hooks.h"
#include "src/reduce/hooks/gradient_memory.h"
#include "src/reduce/hooks/hook_parts.h"

namespace lockstep::hooks {

namespace {

struct TopKMemory {
  std::vector<float> error;  // empty without error feedback
};

struct TopKPart {
  std::string name;
  std::size_t offset = 0, count = 0, kept = 0;
  TopKMemory* memory = nullptr;
};

struct TopKJob {
  float* values = nullptr;
  std::size_t count = 0, kept = 0, ranks = 1;
  std::vector<TopKPart> parts;
  std::vector<std::uint32_t> magnitudes;  // scratch, of the largest part
  Buffer own, gathered;

  std::size_t message_bytes() const { return kept * (sizeof(std::uint32_t) + sizeof(float)); }
};

// As bits, which have the order of the numbers: NaN above all, so that it is sent.
std::uint32_t magnitude_of(float value) { return std::bit_cast<std::uint32_t>(value) & 0x7fffffff; }

// Writes the part's places and values, and leaves in `error` what is not sent; the first of equals is.
void choose(TopKJob& job, const TopKPart& part, std::uint32_t* places, float* chosen) {
  const float* const values = job.values + part.offset;
  std::uint32_t* const magnitudes = job.magnitudes.data();
  for (std::size_t i = 0; i < part.count; ++i) magnitudes[i] = magnitude_of(values[i]);
  std::nth_element(magnitudes, magnitudes + (part.kept - 1), magnitudes + part.count, std::greater<>());
  const std::uint32_t least = magnitudes[part.kept - 1];
  std::size_t above = 0;
  for (std::size_t i = 0; i < part.count; ++i) above += magnitude_of(values[i]) > least ? 1 : 0;
  std::size_t equals = part.kept - above, at = 0;
  for (std::size_t i = 0; i < part.count; ++i) {
    const std::uint32_t magnitude = magnitude_of(values[i]);
    if (magnitude < least || (magnitude == least && equals == 0)) continue;
    if (magnitude == least) --equals;
    places[at] = static_cast<std::uint32_t>(part.offset + i);
    chosen[at++] = values[i];
  }
}

void keep_error(const TopKJob& job, const TopKPart& part, const std::uint32_t* places) {
  float* const error = part.memory->error.data();
  // What is no number must not come back in each later pass.
  for (std::size_t i = 0; i < part.count; ++i) {
    const float value = job.values[part.offset + i];
    error[i] = std::isfinite(value) ? value : 0;
  }
  for (std::size_t k = 0; k < part.kept; ++k) error[places[k] - part.offset] = 0;
}

void compress(TopKJob& job) {
  auto* places = reinterpret_cast<std::uint32_t*>(job.own.data());
  auto* chosen = reinterpret_cast<float*>(places + job.kept);
  for (const TopKPart& part : job.parts) {
    if (part.count == 0) continue;
    const bool has_error = !part.memory->error.empty();
    float* const values = job.values + part.offset;
    if (has_error)
      for (std::size_t i = 0; i < part.count; ++i) values[i] += part.memory->error[i];
    choose(job, part, places, chosen);
    if (has_error) keep_error(job, part, places);
    places += part.kept;
    chosen += part.kept;
  }
}

void expand(const TopKJob& job) {
  std::memset(job.values, 0, job.count * sizeof(float));
  const float share = 1 / static_cast<float>(job.ranks);
  for (std::size_t r = 0; r < job.ranks; ++r) {
    const auto* const places = reinterpret_cast<const std::uint32_t*>(job.gathered.data() + r * job.message_bytes());
    const auto* const chosen = reinterpret_cast<const float*>(places + job.kept);
    for (std::size_t k = 0; k < job.kept; ++k) job.values[places[k]] += share * chosen[k];
  }
}

class TopKHook : public BucketHook {
 public:
  explicit TopKHook(const TopKOptions& options) : options_(options) {}

  std::string describe() const override {
    return fmt::format("top_k (ratio {}, error_feedback {})", options_.ratio, options_.error_feedback);
  }
  std::string refusal(std::span<const GradientInfo> gradients) const override {
    if (!(options_.ratio > 0) || !(options_.ratio <= 1))
      return fmt::format("comm_hook top_k: a ratio of {}; expected a number above 0, at most 1", options_.ratio);
    for (const GradientInfo& gradient : gradients)
      if (gradient.count > std::size_t{1} << 31) return fmt::format("comm_hook top_k: '{}' has more than 2^31 elements", gradient.name);
    return refusal_of_gradients("top_k", gradients);
  }
  void prepare(std::span<const GradientInfo> gradients) override {
    jobs_.clear();  // those of a former wrapper point to memory of its parameters
    memory_.prepare(gradients, [this](TopKMemory& memory, const GradientInfo& gradient) {
      if (options_.error_feedback) memory.error.assign(gradient.count, 0);
    });
  }
  std::vector<HookState> state() override {
    std::vector<HookState> all;
    memory_.for_each([&](const std::string& name, TopKMemory& memory) {
      if (!memory.error.empty()) all.push_back({"top_k.error." + name, memory.error.data(), memory.error.size(), DType::kFloat32, true});
    });
    return all;
  }

  Work reduce(ProcessGroup& group, const GradBucket& bucket) override {
    TopKJob* const job = &jobs_.of(group, bucket);
    job->values = static_cast<float*>(bucket.buffer);
    job->count = bucket.count;
    job->ranks = static_cast<std::size_t>(group.world_size());
    if (!fits(job->parts, bucket)) plan(*job, bucket);
    resize(job->own, group, job->message_bytes(), bucket.device);
    resize(job->gathered, group, job->ranks * job->message_bytes(), bucket.device);
    group.compute_async([job](Stream&) { compress(*job); });
    const Work all = group.all_gather_async(job->own.data(), job->gathered.data(), job->message_bytes(), DType::kUInt8,
                                            {.purpose = purpose_of(bucket), .device = bucket.device});
    return all.then([job](Stream&) { expand(*job); });
  }

 private:
  void plan(TopKJob& job, const GradBucket& bucket) {
    if (bucket.count > std::numeric_limits<std::uint32_t>::max())
      throw InvalidArgument("comm hook top_k: bucket {} has {} elements, at most {} have a place: use a smaller bucket_cap_mb",
                            bucket.index, bucket.count, std::numeric_limits<std::uint32_t>::max());
    job.parts.clear();
    job.kept = 0;
    std::size_t largest = 0;
    for (const GradSlot& slot : bucket.slots) {
      const auto count = static_cast<std::size_t>(slot.shape.count());
      const auto kept = std::min(count, static_cast<std::size_t>(std::ceil(options_.ratio * static_cast<double>(count))));
      job.parts.push_back({std::string(slot.name), slot.offset, count, kept, &memory_.of(slot.name)});
      job.kept += kept;
      largest = std::max(largest, count);
    }
    job.magnitudes.resize(largest);
  }

  const TopKOptions options_;
  ByParameter<TopKMemory> memory_;
  Jobs<TopKJob> jobs_;
};

}  // namespace

CommHook top_k(const TopKOptions& options) { return std::make_shared<TopKHook>(options); }

}  // namespace lockstep::hooks

// Shared by the comm hooks: one job per message, with registered memory, and checks of their options and gradients.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/reduce/comm_hook.h"

namespace lockstep::hooks {

// The most messages that combined hooks make from one bucket: two hooks with two each.
inline constexpr int kMessages = 4;

inline Device& device_of(const ProcessGroup& group, DeviceKind kind) {
  return kind == DeviceKind::kCpu ? cpu_device() : group.local_device();
}

// Ensures registered memory of at least that size. Collective when it grows or shrinks: in the first pass, and after
// the buckets were rebuilt.
void resize(Buffer& memory, ProcessGroup& group, std::size_t bytes, DeviceKind device);
// The same for memory of the device. The default stream is ordered after a pass's work by the end of the pass.
void resize(Buffer& memory, Device& device, std::size_t bytes);

// The data of continuations: one job per message. A job does not move, so a continuation captures only its address. Its
// memory is registered with one group: each group that a hook is used with has its own jobs, and those of destroyed
// groups are dropped.
template <typename Job> class Jobs {
 public:
  Job& of(ProcessGroup& group, const GradBucket& bucket) {
    std::vector<std::unique_ptr<Job>>& jobs = of(group);
    const auto at = static_cast<std::size_t>(bucket.index * kMessages + bucket.message);
    if (at >= jobs.size()) jobs.resize(at + 1);
    if (!jobs[at]) jobs[at] = std::make_unique<Job>();
    return *jobs[at];
  }
  void clear() { groups_.clear(); }

 private:
  struct OfGroup {
    std::weak_ptr<ProcessGroup> group;
    std::vector<std::unique_ptr<Job>> jobs;
  };
  std::vector<std::unique_ptr<Job>>& of(ProcessGroup& group) {
    const std::weak_ptr<ProcessGroup> wanted = group.weak_from_this();
    for (OfGroup& each : groups_)
      if (!each.group.owner_before(wanted) && !wanted.owner_before(each.group)) return each.jobs;
    std::erase_if(groups_, [](const OfGroup& each) { return each.group.expired(); });
    return groups_.emplace_back(OfGroup{wanted, {}}).jobs;
  }

  std::vector<OfGroup> groups_;
};

// Returns " over bf16" for example, or "".
std::string over(const CommHook& next);

// Returns why `next` cannot reduce these gradients, or "". It must average, and if it gets messages that are not
// gradients, it must not keep state by parameter.
std::string refusal_of_next(const CommHook& next, const char* hook, std::span<const GradientInfo> gradients,
                            bool gets_gradients);

// Returns "" if all gradients are float32.
std::string refusal_of_gradients(const char* hook, std::span<const GradientInfo> gradients);

Purpose purpose_of(const GradBucket& bucket);

}  // namespace lockstep::hooks

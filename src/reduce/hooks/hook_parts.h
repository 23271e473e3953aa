// What the shipped comm hooks have in common: a job for each message, with registered memory, and their refusals.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/reduce/comm_hook.h"

namespace lockstep::hooks {

// Messages that hooks standing on each other make of one bucket: at most two of two.
inline constexpr int kMessages = 4;

inline Device& device_of(const ProcessGroup& group, DeviceKind kind) {
  return kind == DeviceKind::kCpu ? cpu_device() : group.local_device();
}

// Registered memory that is at least so large. Collective where it grows or shrinks: in the first pass, and after
// buckets were rebuilt.
void resize(Buffer& memory, ProcessGroup& group, std::size_t bytes, DeviceKind device);
// Memory that stays on the device. What a pass has queued for it, the default stream is behind by the pass's end.
void resize(Buffer& memory, Device& device, std::size_t bytes);

// What continuations work on: one job a message, which stays where it is, so that a continuation captures its address
// alone. Its memory is registered with one group: a hook that is used with another one has other jobs there, and those
// of a group that is gone go.
template <typename Job>
class Jobs {
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

// " over bf16", or "".
std::string over(const CommHook& next);

// Why `next` cannot reduce these gradients, or "": it must average, and where it gets other messages than gradients,
// keep nothing of them.
std::string refusal_of_next(const CommHook& next, const char* hook, std::span<const GradientInfo> gradients,
                            bool gets_gradients);

// "" where all gradients are float32.
std::string refusal_of_gradients(const char* hook, std::span<const GradientInfo> gradients);

Purpose purpose_of(const GradBucket& bucket);

}  // namespace lockstep::hooks

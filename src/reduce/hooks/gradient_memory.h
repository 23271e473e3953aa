// Per-parameter state of hooks, on the parameter's device. It is looked up by name, so it survives rebuilding the
// buckets and loading a checkpoint.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/reduce/comm_hook.h"
#include "src/reduce/hooks/hook_parts.h"

namespace lockstep::hooks {

// Floats on a device, initially zero.
class StateFloats {
 public:
  StateFloats() = default;
  StateFloats(Device& device, std::size_t count) : memory_(device.allocate(count * sizeof(float))), count_(count) {
    device.kernels().fill({data(), {static_cast<std::int64_t>(count)}}, 0, device.default_stream());
  }
  float* data() const { return count_ == 0 ? nullptr : reinterpret_cast<float*>(memory_.data()); }
  std::size_t count() const { return count_; }
  // For checkpoints. Appends nothing if empty.
  void append_to(std::vector<HookState>& all, std::string name, bool is_each_ranks_own) const {
    if (count_ == 0) return;
    Device* const gpu = memory_.device()->kind() == DeviceKind::kCpu ? nullptr : memory_.device();
    all.push_back({std::move(name), data(), count_, DType::kFloat32, is_each_ranks_own, gpu});
  }

 private:
  Buffer memory_;
  std::size_t count_ = 0;
};

// A copy of a part of a hook's state from before a pass that may be undone. Its memory is allocated on first use.
class StateBefore {
 public:
  // Call before the first bucket of the pass. `keeps`: whether the pass may be undone.
  void begin(const StateFloats& floats, Device& device, bool keeps) {
    keeps_ = keeps && floats.count() != 0;
    if (keeps_ && before_.count() == 0) before_ = StateFloats(device, floats.count());
  }
  // Call on the stream of the pass before it changes the state.
  void keep(const StateFloats& floats, Device& device, Stream& stream) const {
    if (keeps_) device.copy(before_.data(), floats.data(), floats.count() * sizeof(float), stream);
  }
  // Call after the pass.
  void restore(const StateFloats& floats, Device& device) {
    if (std::exchange(keeps_, false))
      device.copy(floats.data(), before_.data(), floats.count() * sizeof(float), device.default_stream());
  }

 private:
  StateFloats before_;
  bool keeps_ = false;
};

// One entry per parameter. `Entry` must be default-constructible; entries do not move in memory.
template <typename Entry> class ByParameter {
 public:
  // Keeps the entries of unchanged parameters and drops the others. `make(entry, gradient, device)` initialises new
  // ones.
  template <typename Make>
  void prepare(const ProcessGroup& group, std::span<const GradientInfo> gradients, Make&& make) {
    Entries kept;
    for (const GradientInfo& gradient : gradients) {
      Device& device = hooks::device_of(group, gradient.device);
      const auto found = entries_.find(gradient.name);
      if (found != entries_.end() && found->second.count == gradient.count && found->second.device == &device) {
        kept[gradient.name] = std::move(found->second);
        continue;
      }
      Kept& entry = kept[gradient.name];
      entry = {std::make_unique<Entry>(), gradient.count, &device};
      make(*entry.entry, gradient, device);
    }
    entries_ = std::move(kept);
  }
  Entry& of(std::string_view name) { return *entries_.find(name)->second.entry; }
  Device& device_of(std::string_view name) const { return *entries_.find(name)->second.device; }

  template <typename Use> void for_each(Use&& use) {
    for (auto& [name, kept] : entries_) use(name, *kept.entry);
  }

 private:
  struct Kept {
    std::unique_ptr<Entry> entry;
    std::size_t count = 0;
    Device* device = nullptr;
  };
  using Entries = std::map<std::string, Kept, std::less<>>;
  Entries entries_;
};

// Returns whether a job still fits the bucket's slots. The elements of `parts` have `name` and `offset`.
template <typename Part> bool fits(const std::vector<Part>& parts, const GradBucket& bucket) {
  if (parts.size() != bucket.slots.size()) return false;
  for (std::size_t s = 0; s < parts.size(); ++s)
    if (parts[s].name != bucket.slots[s].name || parts[s].offset != bucket.slots[s].offset) return false;
  return true;
}

}  // namespace lockstep::hooks

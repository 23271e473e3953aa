// State of hooks by parameter: found by name, so that it stays where buckets are rebuilt or a checkpoint is loaded.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/reduce/comm_hook.h"

namespace lockstep::hooks {

// One entry a parameter; `Entry` is default-constructible. Entries stay where they are.
template <typename Entry>
class ByParameter {
 public:
  // Keeps the entries of parameters that stay, drops others. `make(entry, gradient)` sets up new ones.
  template <typename Make>
  void prepare(std::span<const GradientInfo> gradients, Make&& make) {
    Entries kept;
    for (const GradientInfo& gradient : gradients) {
      const auto found = entries_.find(gradient.name);
      if (found != entries_.end() && found->second.count == gradient.count) {
        kept[gradient.name] = std::move(found->second);
        continue;
      }
      Kept& entry = kept[gradient.name];
      entry = {std::make_unique<Entry>(), gradient.count};
      make(*entry.entry, gradient);
    }
    entries_ = std::move(kept);
  }
  Entry& of(std::string_view name) { return *entries_.find(name)->second.entry; }

  template <typename Use>
  void for_each(Use&& use) {
    for (auto& [name, kept] : entries_) use(name, *kept.entry);
  }

 private:
  struct Kept {
    std::unique_ptr<Entry> entry;
    std::size_t count = 0;
  };
  using Entries = std::map<std::string, Kept, std::less<>>;
  Entries entries_;
};

// Does a job still fit the bucket's slots? `parts` have `name` and `offset`.
template <typename Part>
bool fits(const std::vector<Part>& parts, const GradBucket& bucket) {
  if (parts.size() != bucket.slots.size()) return false;
  for (std::size_t s = 0; s < parts.size(); ++s)
    if (parts[s].name != bucket.slots[s].name || parts[s].offset != bucket.slots[s].offset) return false;
  return true;
}

}  // namespace lockstep::hooks

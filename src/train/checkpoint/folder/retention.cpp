#include "src/train/checkpoint/folder/retention.h"

#include <algorithm>
#include <tuple>

namespace lockstep::train::checkpoint {

void sort_by_age(std::vector<KeptCheckpoint>& checkpoints) {
  // "step-00000003.10" comes after "step-00000003.9".
  const auto order = [](const KeptCheckpoint& each) {
    return std::tuple(each.sequence, each.step, each.name.size(), each.name);
  };
  std::sort(checkpoints.begin(), checkpoints.end(),
            [&](const KeptCheckpoint& a, const KeptCheckpoint& b) { return order(a) > order(b); });
}

std::int64_t next_sequence(const std::vector<KeptCheckpoint>& checkpoints) {
  std::int64_t last = 0;
  for (const KeptCheckpoint& each : checkpoints) last = std::max(last, each.sequence);
  return last + 1;
}

std::vector<std::string> names_to_remove(std::vector<KeptCheckpoint> others, std::int64_t saved_at,
                                         const Retention& retention) {
  sort_by_age(others);
  std::vector<std::string> names;
  int kept = 1;  // the new one
  std::int64_t time = saved_at;
  for (const KeptCheckpoint& each : others) {
    const bool has_time = each.saved_at > 0;
    if (has_time) time = std::min(time, each.saved_at);  // a clock may have been ahead
    const bool is_young = has_time && saved_at - time < retention.keep_for.count();
    if (kept >= retention.keep && !is_young)
      names.push_back(each.name);
    else if (retention.damaged.count(each.name) == 0)
      ++kept;
  }
  return names;
}

}  // namespace lockstep::train::checkpoint

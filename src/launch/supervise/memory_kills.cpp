#include "src/launch/supervise/memory_kills.h"

namespace lockstep::launch {

void MemoryKillLog::note(std::optional<long> total, Clock::time_point now) {
  if (!total) return samples_.clear();
  samples_.push_back({*total, now});
  while (samples_.size() > 1 && samples_[1].when + kWindow <= now) samples_.pop_front();
}

std::optional<Clock::time_point> MemoryKillLog::due() const {
  return samples_.empty() ? std::nullopt : std::optional(samples_.back().when + kEvery);
}

std::optional<MemoryKills> MemoryKillLog::recent(std::optional<long> total, Clock::time_point now) const {
  if (!total || samples_.empty()) return std::nullopt;
  const Sample* base = &samples_.front();
  for (const Sample& sample : samples_)
    if (sample.when + kWindow <= now) base = &sample;
  return MemoryKills{*total - base->total, std::chrono::ceil<std::chrono::seconds>(now - base->when)};
}

}  // namespace lockstep::launch

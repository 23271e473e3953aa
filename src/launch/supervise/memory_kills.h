// Counts the processes of this control group that the system has recently killed because memory ran out. Pure: no file,
// no clock.
//
// The system's count rises before the killed process is gone, which takes seconds if it had much memory. So a death is
// compared with a count from kWindow before, not with the last one. Earlier kills are unrelated.
#pragma once

#include <chrono>
#include <deque>
#include <optional>

#include "src/launch/supervise/failure_policy.h"

namespace lockstep::launch {

class MemoryKillLog {
 public:
  // `total` is the system's count since the group exists; nullopt: it does not count.
  void note(std::optional<long> total, Clock::time_point now);
  // When to call note() next; nullopt: the system does not count.
  std::optional<Clock::time_point> due() const;
  // nullopt: unknown.
  std::optional<MemoryKills> recent(std::optional<long> total, Clock::time_point now) const;

 private:
  static constexpr std::chrono::seconds kEvery{1}, kWindow{10};

  struct Sample {
    long total;
    Clock::time_point when;
  };
  std::deque<Sample> samples_;  // of those older than kWindow, only the last
};

}  // namespace lockstep::launch

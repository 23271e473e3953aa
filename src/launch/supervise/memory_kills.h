// How many processes of this control group the system has killed of late because memory ran out. Pure: no file, no
// clock.
//
// The system's count rises before the killed process is gone, which takes seconds where it had much memory: so a death
// is compared with a count from kWindow before, not with the last one. What was killed earlier has nothing to do with
// it.
#pragma once

#include <chrono>
#include <deque>
#include <optional>

#include "src/launch/supervise/failure_policy.h"

namespace lockstep::launch {

class MemoryKillLog {
 public:
  // `total`: the system's count since the group exists; nullopt: it does not count.
  void note(std::optional<long> total, Clock::time_point now);
  // When to note the next; absent: the system does not count.
  std::optional<Clock::time_point> due() const;
  // Nullopt: not known.
  std::optional<MemoryKills> recent(std::optional<long> total, Clock::time_point now) const;

 private:
  static constexpr std::chrono::seconds kEvery{1}, kWindow{10};

  struct Sample {
    long total;
    Clock::time_point when;
  };
  std::deque<Sample> samples_;  // of all that are older than kWindow the last one alone
};

}  // namespace lockstep::launch

// How long a thread that waits for a peer stays awake.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>

namespace lockstep {

// A yielding thread reacts within microseconds, and others may use its core meanwhile. Afterwards it sleeps.
inline constexpr auto kYieldFor = std::chrono::milliseconds(1);

// The yields of one thread that waits for its peers repeatedly.
//
// On a core with other work, a yield lasts as long as the system lets that work run: milliseconds, in which the peer
// may have arrived long ago. A sleeper is woken at once, before such work. So after a slow yield the thread stops
// yielding for a while, which doubles as long as yields stay slow.
class YieldingWait {
 public:
  using Clock = std::chrono::steady_clock;

  // Yields until `condition` holds and returns true. Returns false after kYieldFor, at `latest` or after a slow yield.
  template <typename Condition> bool until(Condition&& condition, Clock::time_point latest = Clock::time_point::max()) {
    auto now = Clock::now();
    const auto end = std::min(latest, now + kYieldFor);
    while (now < end && now >= again_) {
      if (condition()) return true;
      now = yield_at(now);
    }
    return condition();
  }

  // Yields once. Returns false if the thread should sleep next.
  bool once() {
    const auto now = Clock::now();
    return now >= again_ && yield_at(now) >= again_;
  }

 private:
  static constexpr auto kQuickYield = std::chrono::microseconds(100);
  static constexpr std::chrono::milliseconds kShortestRest{1}, kLongestRest{64};

  Clock::time_point yield_at(Clock::time_point now) {
    sched_yield();
    const auto after = Clock::now();
    if (after - now <= kQuickYield) return after;
    // The last pause without yields has just ended, and nothing has changed.
    const bool is_still_slow = now - again_ < rest_;
    rest_ = is_still_slow ? std::min(2 * rest_, kLongestRest) : kShortestRest;
    again_ = after + rest_;
    return after;
  }

  std::chrono::milliseconds rest_{0};
  Clock::time_point again_{};
};

}  // namespace lockstep

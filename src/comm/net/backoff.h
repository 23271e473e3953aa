// How long a thread that waits for a peer stays awake.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>

namespace lockstep {

// Yielding, a thread answers within microseconds, and others may use its core meanwhile; on a busy machine one yield may take all of this
// time. Then it sleeps.
inline constexpr auto kYieldFor = std::chrono::milliseconds(1);

// Yields until `condition` holds: true; or for kYieldFor, at most until `latest`: false.
template <typename Condition>
bool yield_until(Condition&& condition, std::chrono::steady_clock::time_point latest = std::chrono::steady_clock::time_point::max()) {
  const auto end = std::min(latest, std::chrono::steady_clock::now() + kYieldFor);
  do {
    if (condition()) return true;
    sched_yield();
  } while (std::chrono::steady_clock::now() < end);
  return condition();
}

}  // namespace lockstep

// The flight recorder's clock: as cheap to read as the processor allows, and converted to wall-clock time when a record
// is read.
#pragma once

#include <chrono>
#include <cstdint>

#include "src/core/base/processor.h"

namespace lockstep::flight {

inline const bool kUsesCounter = has_steady_counter();

// Increases steadily; between 0 and 2^62. The counter costs about 10 ns, the system's clock 25.
inline std::uint64_t ticks() {
  if (kUsesCounter) [[likely]]
    return steady_counter();
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

// Converts ticks to nanoseconds since 1970, by linear interpolation between the program's start and the construction of
// this object. Times in that range are exact to well below a microsecond, whatever the counter's rate.
class ClockReading {
 public:
  ClockReading();
  std::int64_t wall_ns(std::uint64_t ticks) const;
  std::int64_t now_wall_ns() const { return wall_now_; }
  std::int64_t now_monotonic_ns() const {
    return monotonic_now_;
  }  // CLOCK_MONOTONIC is common to all processes of a machine

 private:
  std::uint64_t ticks_now_;
  std::int64_t monotonic_now_, wall_now_;
  double ns_per_tick_;
};

}  // namespace lockstep::flight

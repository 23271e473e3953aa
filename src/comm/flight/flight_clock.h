// The flight recorder's clock: as cheap to read as the processor allows, turned into wall-clock time when it is read.
#pragma once

#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace lockstep::flight {

// False where the processor has no time stamp counter that runs at one rate on all cores.
bool has_steady_counter();
inline const bool kUsesCounter = has_steady_counter();

// Grows steadily; above 0, below 2^62. The counter costs about 10 ns, the system's clock 25.
inline std::uint64_t ticks() {
#if defined(__x86_64__)
  if (kUsesCounter) [[likely]]
    return __rdtsc();
#endif
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

// Ticks as nanoseconds since 1970, on the line through two moments: when the program started and when this was made.
// Time between them is exact to well below a microsecond, whatever the counter's rate.
class ClockReading {
 public:
  ClockReading();
  std::int64_t wall_ns(std::uint64_t ticks) const;
  std::int64_t now_wall_ns() const { return wall_now_; }
  std::int64_t now_monotonic_ns() const {
    return monotonic_now_;
  }  // CLOCK_MONOTONIC: one for all processes of a machine

 private:
  std::uint64_t ticks_now_;
  std::int64_t monotonic_now_, wall_now_;
  double ns_per_tick_;
};

}  // namespace lockstep::flight

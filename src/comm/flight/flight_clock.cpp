#include "src/comm/flight/flight_clock.h"

#include <time.h>

#include <thread>

namespace lockstep::flight {

namespace {

std::int64_t read_ns(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

// Both clocks read at one moment: of several tries, the one with the least time in between.
struct Moment {
  std::uint64_t ticks = 0;
  std::int64_t monotonic = 0;
};
Moment read_moment() {
  constexpr int kTries = 5;
  Moment best;
  std::uint64_t shortest = ~std::uint64_t{0};
  for (int i = 0; i < kTries; ++i) {
    const std::uint64_t before = ticks();
    const std::int64_t monotonic = read_ns(CLOCK_MONOTONIC);
    const std::uint64_t after = ticks();
    if (after - before >= shortest) continue;
    shortest = after - before;
    best = {before + shortest / 2, monotonic};
  }
  return best;
}

const Moment kStart = read_moment();

}  // namespace

ClockReading::ClockReading() {
  constexpr std::int64_t kShortestLine = 1'000'000;
  Moment now = read_moment();
  if (now.monotonic - kStart.monotonic < kShortestLine) {  // the program has only just begun
    std::this_thread::sleep_for(std::chrono::nanoseconds(kShortestLine));
    now = read_moment();
  }
  ticks_now_ = now.ticks;
  monotonic_now_ = now.monotonic;
  wall_now_ = read_ns(CLOCK_REALTIME) - (read_ns(CLOCK_MONOTONIC) - now.monotonic);
  ns_per_tick_ = static_cast<double>(now.monotonic - kStart.monotonic) / static_cast<double>(now.ticks - kStart.ticks);
}

std::int64_t ClockReading::wall_ns(std::uint64_t at) const {
  const double behind = at <= ticks_now_ ? static_cast<double>(ticks_now_ - at) : -static_cast<double>(at - ticks_now_);
  return wall_now_ - static_cast<std::int64_t>(behind * ns_per_tick_);
}

}  // namespace lockstep::flight

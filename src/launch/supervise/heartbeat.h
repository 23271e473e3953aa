// The heartbeat of the lockrun at the other end of a connection: a stopped process keeps its connections. Pure: no
// socket, no clock.
//
// A heartbeat is asked for once a second, and only when the last one has come: requests that the peer does not read
// must not pile up. This process may have been stopped itself, with the whole job: of the time between two looks no
// more counts than it lets pass of its own will.
#pragma once

#include <algorithm>
#include <chrono>

#include "src/launch/supervise/failure_policy.h"

namespace lockstep::launch {

class Heartbeat {
 public:
  Heartbeat(std::chrono::milliseconds patience, Clock::time_point now)
      : patience_(patience), last_look_(now), ask_at_(now) {}

  // At least every 100 ms. True: ask now.
  bool look(Clock::time_point now) {
    if (is_asked_) silent_ += std::min<Clock::duration>(now - last_look_, kLongestPause);
    last_look_ = now;
    if (is_asked_ || now < ask_at_) return false;
    is_asked_ = true;
    ask_at_ = now + kPeriod;
    silent_ = {};
    return true;
  }
  void heard() { is_asked_ = false; }

  bool is_missing() const { return is_asked_ && silent_ >= patience_; }
  std::chrono::milliseconds patience() const { return patience_; }

 private:
  static constexpr std::chrono::milliseconds kPeriod{1000}, kLongestPause{500};

  std::chrono::milliseconds patience_;
  Clock::time_point last_look_, ask_at_;
  Clock::duration silent_{};
  bool is_asked_ = false;
};

}  // namespace lockstep::launch

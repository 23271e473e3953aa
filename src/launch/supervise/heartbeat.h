// Watches the lockrun at the other end of a connection by heartbeats, since a stopped process keeps its connections.
// Pure: no socket, no clock.
//
// A heartbeat is requested once a second, and only after the previous one has arrived, so that unread requests do not
// pile up. This process may itself have been stopped with the job: of the time between two calls of look(), no more
// counts than this process waits on its own.
#pragma once

#include <algorithm>
#include <chrono>

#include "src/launch/supervise/failure_policy.h"

namespace lockstep::launch {

class Heartbeat {
 public:
  Heartbeat(std::chrono::milliseconds patience, Clock::time_point now)
      : patience_(patience), last_look_(now), ask_at_(now) {}

  // Call it at least every 100 ms. Returns true if a heartbeat should be requested now.
  bool look(Clock::time_point now) {
    if (is_requested_) silent_ += std::min<Clock::duration>(now - last_look_, kLongestPause);
    last_look_ = now;
    if (is_requested_ || now < ask_at_) return false;
    is_requested_ = true;
    ask_at_ = now + kPeriod;
    silent_ = {};
    return true;
  }
  void note_heartbeat() { is_requested_ = false; }

  bool is_missing() const { return is_requested_ && silent_ >= patience_; }
  std::chrono::milliseconds patience() const { return patience_; }

 private:
  static constexpr std::chrono::milliseconds kPeriod{1000}, kLongestPause{500};

  std::chrono::milliseconds patience_;
  Clock::time_point last_look_, ask_at_;
  Clock::duration silent_{};
  bool is_requested_ = false;
};

}  // namespace lockstep::launch

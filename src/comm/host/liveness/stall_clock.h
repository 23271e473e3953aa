// Decides which peers are stalled: a pure state machine whose inputs are the time and the peers' heartbeat counters.
//
// A rank may itself have been stopped, with its job (Ctrl-Z, a suspended machine) or alone, and must not blame its
// peers for that time. So it reads the clock often, and of the time between two readings it counts no more than the
// longest pause that it makes itself. The time that counts is called awake time.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace lockstep::host {

class StallClock {
 public:
  using Clock = std::chrono::steady_clock;
  using Duration = Clock::duration;

  // A peer is stalled if it is silent for `stall_after` of awake time.
  StallClock(int ranks, Duration stall_after, Duration longest_pause, Clock::time_point now);

  // Call it first whenever the owner wakes.
  void look(Clock::time_point now);
  // The peer's counter is `beats`; it is a heartbeat only if it has changed.
  void note_beats(int rank, std::uint64_t beats);
  // Ignores the rank from now on: this rank itself, or one that has left.
  void forget(int rank) { peers_[static_cast<std::size_t>(rank)].watched = false; }

  std::vector<int> stalled() const;
  // Awake time until the first watched peer is stalled if it stays silent; Duration::max() when no peer is watched.
  Duration until_next_stall() const;
  Duration silent_for(int rank) const { return awake_ - peers_[static_cast<std::size_t>(rank)].beat_at; }
  // Time for which this rank did not run, up to `now`, which may be later than the last look().
  Duration slept(Clock::time_point now) const;

 private:
  struct Peer {
    bool watched = true;
    std::uint64_t beats = 0;
    Duration beat_at{0};  // awake time
  };

  const Duration stall_after_, longest_pause_;
  Clock::time_point last_look_;
  Duration awake_{0}, slept_{0};
  std::vector<Peer> peers_;
};

}  // namespace lockstep::host

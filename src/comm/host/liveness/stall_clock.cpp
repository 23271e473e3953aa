#include "src/comm/host/liveness/stall_clock.h"

#include <algorithm>

namespace lockstep::host {

StallClock::StallClock(int ranks, Duration stall_after, Duration longest_pause, Clock::time_point now)
    : stall_after_(stall_after),
      longest_pause_(longest_pause),
      last_look_(now),
      peers_(static_cast<std::size_t>(ranks)) {}

void StallClock::look(Clock::time_point now) {
  slept_ = slept(now);
  awake_ += std::min(now - last_look_, longest_pause_);
  last_look_ = now;
}

StallClock::Duration StallClock::slept(Clock::time_point now) const {
  return slept_ + std::max(now - last_look_ - longest_pause_, Duration::zero());
}

void StallClock::note_beats(int rank, std::uint64_t beats) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  if (beats != peer.beats) peer.beat_at = awake_;
  peer.beats = beats;
}

std::vector<int> StallClock::stalled() const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < peers_.size(); ++rank)
    if (peers_[rank].watched && awake_ - peers_[rank].beat_at >= stall_after_) ranks.push_back(static_cast<int>(rank));
  return ranks;
}

StallClock::Duration StallClock::until_next_stall() const {
  Duration first = Duration::max();
  for (const Peer& peer : peers_)
    if (peer.watched) first = std::min(first, std::max(peer.beat_at + stall_after_ - awake_, Duration::zero()));
  return first;
}

}  // namespace lockstep::host

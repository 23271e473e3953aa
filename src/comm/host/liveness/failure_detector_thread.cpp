// The thread of a failure detector: it sleeps until a peer sends a message or exits, and checks about once a second
// which peers are alive.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/core/environment.h"
#include "src/comm/host/liveness/failure_detector_impl.h"
#include "src/comm/rendezvous/slurm.h"

namespace lockstep::host {

void FailureDetector::Impl::wake_thread() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);  // full: the thread is awake already
}

void FailureDetector::Impl::stop() noexcept {
  if (!thread_.joinable()) return;
  stop_.store(true);
  wake_thread();
  thread_.join();
}

// polls[0] is the wake signal, polls[r + 1] the liveness fd of rank r (negative descriptors are ignored), followed by
// the connections.
void FailureDetector::Impl::run() {
  std::vector<pollfd> polls;
  Lock lock(mutex_);
  while (!stop_.load()) {
    polls.assign(1, {wake_.get(), POLLIN, 0});
    for (std::size_t rank = 0; rank < lines_.size(); ++rank)
      polls.push_back({lines_[rank], static_cast<short>(fd_was_readable_[rank] ? 0 : POLLIN), 0});
    if (links_) links_->add_to(polls);
    const int timeout = poll_timeout();
    lock.unlock();
    poll(polls.data(), polls.size(), timeout);
    std::uint64_t count;
    [[maybe_unused]] const auto taken = ::read(wake_.get(), &count, sizeof count);
    lock.lock();
    clock_.look(Clock::now());
    read_lines(polls);
    if (detector_.over()) settle(group_error(), lock);  // another rank of this machine wrote it
    for (int rank = 0; rank < place_.world_size; ++rank)
      if ((polls[static_cast<std::size_t>(rank) + 1].revents & POLLHUP) != 0) lost(rank, 0, lock);
    if (links_) read_links(lock);
    if (Clock::now() >= next_beat_) beat();
    look_at_machine();
    blame_stalled(lock);
    pursue(lock);
  }
}

// Time until the next heartbeat is due, a rank may be found stalled, or the time of an answer is over.
int FailureDetector::Impl::poll_timeout() const {
  if (detector_.over_.load()) return -1;
  auto until = next_beat_;
  const auto now = Clock::now();
  if (const auto stall = clock_.until_next_stall(); !left_ && stall < until - now) until = now + stall;
  if (proposed_.kind != GroupErrorKind::kNone) until = std::min({until, ask_until_, proposed_at_ + kLongestAgreement});
  return remaining_ms(until);
}

// A byte in a liveness fd wakes its watchers. It is never read: all ranks that watch the descriptor must see it.
void FailureDetector::Impl::read_lines(const std::vector<pollfd>& polls) {
  for (std::size_t rank = 0; rank < lines_.size(); ++rank) {
    if ((polls[rank + 1].revents & POLLIN) != 0) fd_was_readable_[rank] = true;
    if ((polls[rank + 1].revents & POLLHUP) != 0) lines_[rank] = -1;
    if (peers_[rank].local_rank >= 0 && block(static_cast<int>(rank)).left.load() != 0) peers_[rank].left.store(true);
  }
}

// A peer that receives a group error may exit at once: group errors are handled before exits, on whichever connection
// they arrive.
void FailureDetector::Impl::read_links(Lock& lock) {
  std::vector<ControlMessage> news;
  links_->flush();
  links_->receive(news);
  for (const ControlMessage& each : news) {
    if (each.kind == ControlMessage::kGoodbye) peer(each.from).left.store(true);
    if (each.kind == ControlMessage::kGroupError) settle(each.group_error, lock);
    if (each.kind != ControlMessage::kHeartbeat) continue;
    Peer& sender = peer(each.from);
    clock_.note_beats(each.from, ++sender.beats);
    const auto now = Clock::now();
    sender.sighting.see(each.beat.activity, now, now - each.beat.age);
  }
  for (const ControlMessage& each : news)
    if (each.kind == ControlMessage::kProposal) settle(each.group_error, lock);
  for (const ControlMessage& each : news)
    if (each.kind == ControlMessage::kClosed) lost(each.from, each.error, lock);
}

void FailureDetector::Impl::beat() {
  next_beat_ = Clock::now() + period_;
  if (detector_.over_.load() || left_) return;
  own_record_->beats.fetch_add(1, std::memory_order_relaxed);  // publishes nothing: the count itself is the message
  if (!links_) return;
  Sighting& own = peer(place_.rank).sighting;
  const auto now = Clock::now();
  own.see(own_record_->read(), now);
  const Heartbeat beat{own.activity, std::chrono::duration_cast<std::chrono::milliseconds>(now - own.since)};
  for (int rank = 0; rank < place_.world_size; ++rank)
    if (peer(rank).local_rank < 0) links_->beat(rank, beat);
}

// The activity of this machine's ranks is read directly from shared memory.
void FailureDetector::Impl::look_at_machine() {
  if (!machine_) return;
  for (const int rank : machine_->ranks) {
    Peer& each = peer(rank);
    const ActivityRecord& record = block(rank).activity;
    const std::uint64_t beats = record.beats.load(std::memory_order_relaxed);
    const Activity activity = record.read();
    if (beats != each.beats || activity.word != each.sighting.activity.word) each.sighting.see(activity, Clock::now());
    each.beats = beats;
    clock_.note_beats(rank, beats);
  }
}

void FailureDetector::Impl::lost(int rank, int error, Lock& lock) {
  Peer& its = peer(rank);
  if (its.left.load() || left_) return;
  its.gone = true;
  look_at_machine();
  const std::string did = did_last(rank);
  if (error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH)
    return propose({GroupErrorKind::kPeerLost,
                    fmt::format("{} cannot be reached: its machine has acknowledged nothing for {} ({}); it {}; is "
                                "that machine up, and the network between?",
                                name_of_rank(rank), seconds_text(lost_after_), std::strerror(error), did)},
                   lock);
  propose({GroupErrorKind::kPeerLost,
           fmt::format("{} died: its process is gone without a goodbye; it {}; its last output may tell why",
                       name_of_rank(rank), did)},
          lock);
}

void FailureDetector::Impl::blame_stalled(Lock& lock) {
  if (detector_.over() || left_) return;
  for (int rank = 0; rank < place_.world_size; ++rank)
    if (peer(rank).left.load()) clock_.forget(rank);
  const std::vector<int> stalled = clock_.stalled();
  if (stalled.empty()) return;
  std::string others;
  for (const int rank : stalled) {
    peer(rank).gone = true;
    clock_.forget(rank);
    if (rank != stalled.front()) others += fmt::format("{}{}", others.empty() ? "; nor have ranks " : ", ", rank);
  }
  propose(
      {GroupErrorKind::kPeerLost,
       fmt::format(
           "{} has sent no heartbeat for {}; it {}{}; is its process stopped, its machine down, or the network cut?{}",
           name_of_rank(stalled.front()), seconds_text(stall_timeout_), did_last(stalled.front()), others,
           slurm::how_to_end_step(env::text))},
      lock);
}

}  // namespace lockstep::host

// The implementation of FailureDetector: failure_detector.cpp has the group error, failure_detector_thread.cpp the
// thread that watches heartbeats.
#pragma once

#include <poll.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "src/comm/host/liveness/control_connections.h"
#include "src/comm/host/liveness/failure_detector.h"
#include "src/comm/host/liveness/stall_clock.h"
#include "src/comm/host/machine/shared_group_error.h"

namespace lockstep::host {

inline constexpr auto kTimeToAnswer = std::chrono::milliseconds(500);       // for one rank to answer a proposal
inline constexpr auto kLongestAgreement = std::chrono::milliseconds(1500);  // then every rank uses its own proposal

class FailureDetector::Impl {
 public:
  using Clock = std::chrono::steady_clock;

  Impl(FailureDetector& detector, const FailureDetectorOptions& options, const MachinePeers* machine,
       std::vector<TcpPeer> links);
  ~Impl();

  GroupError group_error() const { return shared_ ? shared_->get() : own_.get(); }
  void declare(GroupErrorKind kind, const std::string& text);
  bool await_over(std::chrono::milliseconds at_most);
  void on_over(std::function<void()> wake);
  std::chrono::nanoseconds slept() const;
  std::string name_of_rank(int rank) const;
  std::string last_seen(int rank);
  std::string describe_absence(const Operation& operation, Clock::duration waited, const std::vector<int>& absent,
                               std::string_view did_not);
  int rank_of_local(int local_rank) const {
    return machine_ ? machine_->ranks[static_cast<std::size_t>(local_rank)] : local_rank;
  }
  void leave() noexcept;
  bool has_left(int rank) const { return peers_[static_cast<std::size_t>(rank)].left.load(); }
  void wake_all() {
    if (shared_) shared_->wake_all();
  }
  void stop() noexcept;

  const Place place_;

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Peer {
    std::atomic<bool> left{false};  // sent a goodbye
    bool gone = false;              // died or stalled, as far as this rank can see
    bool passed_over = false;       // did not answer a proposal in time
    int local_rank = -1;            // in the control block
    std::uint64_t beats = 0;        // heartbeats received
    Sighting sighting;
  };

  void sign_in();
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  const Peer& peer(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }
  RankBlock& block(int rank) const { return machine_->layout.block(peer(rank).local_rank); }

  std::uint64_t calls_in_common() const;
  // The text after "rank 3 ", for a rank that is lost, or that lives and does not arrive.
  std::string did_last(int rank) const;
  std::string whereabouts(int rank) const;

  void propose(GroupError group_error, Lock& lock);
  void pursue(Lock& lock);
  int deciding_rank() const;
  void settle(const GroupError& group_error, Lock& lock);

  void run();
  int poll_timeout() const;
  void wake_thread() noexcept;
  void read_lines(const std::vector<pollfd>& polls);
  void read_links(Lock& lock);
  void beat();
  void look_at_machine();
  void lost(int rank, int error, Lock& lock);
  void blame_stalled(Lock& lock);

  FailureDetector& detector_;
  const std::optional<MachinePeers> machine_;
  const std::chrono::milliseconds stall_timeout_, period_, lost_after_;
  std::optional<SharedGroupError> shared_;
  LocalGroupError own_;
  std::optional<ControlConnections> links_;
  std::vector<Peer> peers_;  // by rank

  mutable std::mutex mutex_;  // guards the members that are not atomic
  std::condition_variable settled_;
  std::vector<std::function<void()>> wakes_;
  GroupError proposed_;  // by this rank; kNone: no proposal
  Clock::time_point proposed_at_{}, ask_until_{};
  int proposed_to_ = -1;  // the rank that is to decide
  bool left_ = false;     // this rank sent its goodbye

  ActivityRecord* own_record_;
  StallClock clock_;
  Clock::time_point next_beat_{};
  std::vector<int> lines_;  // liveness fds by rank of the group; -1: none, or closed
  std::vector<bool> fd_was_readable_;
  Fd wake_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace lockstep::host

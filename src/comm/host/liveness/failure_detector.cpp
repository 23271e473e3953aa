#include "src/comm/host/liveness/failure_detector.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/host/liveness/failure_detector_impl.h"
#include "src/comm/net/host_names.h"
#include "src/comm/rendezvous/slurm.h"

namespace lockstep::host {

namespace {

// About a second; more for many ranks, whose heartbeats add up; at least four within a stall timeout.
std::chrono::milliseconds period_for(int ranks, std::chrono::milliseconds stall_timeout) {
  return std::min(stall_timeout / 4, std::max(std::chrono::milliseconds(1000), ranks * std::chrono::milliseconds(50)));
}

// How long a machine may acknowledge nothing: 9 s of the default 30.
std::chrono::milliseconds lost_after(std::chrono::milliseconds stall_timeout) {
  return std::max(stall_timeout * 3 / 10, std::min(stall_timeout, std::chrono::milliseconds(3000)));
}

// A thread may run late by this much although its process was not stopped.
constexpr auto kTolerance = std::chrono::milliseconds(250);

}  // namespace

// A process that exits normally leaves its groups, also if it calls exit() and the group's destructor does not run.
class FailureDetector::AtExit {
 public:
  static AtExit& get() {
    static auto& all = *new AtExit;  // never destroyed: the handler may run last
    return all;
  }
  void add(Impl* detector) {
    const std::lock_guard lock(mutex_);
    if (pid_.exchange(getpid()) != getpid()) {
      detectors_.clear();  // copied from the parent by a fork
      on_exit([](int status, void*) { get().leave_all(status); }, nullptr);
    }
    detectors_.insert(detector);
  }
  void remove(Impl* detector) {
    const std::lock_guard lock(mutex_);
    detectors_.erase(detector);
  }

 private:
  void leave_all(int status) {
    if (status != 0 || pid_ != getpid()) return;
    const std::lock_guard lock(mutex_);
    for (Impl* detector : detectors_) detector->leave();
  }

  std::mutex mutex_;
  std::atomic<pid_t> pid_{0};
  std::set<Impl*> detectors_;
};

FailureDetector::Impl::Impl(FailureDetector& detector, const FailureDetectorOptions& options,
                            const MachinePeers* machine, std::vector<TcpPeer> links)
    : place_(options.place),
      detector_(detector),
      machine_(machine != nullptr ? std::optional(*machine) : std::nullopt),
      stall_timeout_(options.stall_timeout),
      period_(period_for(options.place.world_size, stall_timeout_)),
      lost_after_(lost_after(stall_timeout_)),
      peers_(static_cast<std::size_t>(options.place.world_size)),
      own_record_(&detector.own_record_),
      clock_(options.place.world_size, stall_timeout_, period_ + kTolerance, Clock::now()),
      lines_(peers_.size(), -1),
      fd_was_readable_(peers_.size()),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) throw Error("backend host: cannot watch the peers: {}", std::strerror(errno));
  if (machine_) sign_in();
  if (!links.empty()) links_.emplace(place_.rank, std::move(links), lost_after_, Clock::now() + options.store_timeout);
  clock_.forget(place_.rank);
  if (place_.world_size == 1) return;
  thread_ = std::thread([this] { run(); });
  AtExit::get().add(this);
}

FailureDetector::Impl::~Impl() {
  AtExit::get().remove(this);
  stop();
}

void FailureDetector::Impl::sign_in() {
  const auto liveness_fds = machine_->provider->liveness_fds();
  for (std::size_t local = 0; local < machine_->ranks.size(); ++local) {
    const auto rank = static_cast<std::size_t>(machine_->ranks[local]);
    peers_[rank].local_rank = static_cast<int>(local);
    if (local < liveness_fds.size() && static_cast<int>(local) != machine_->local_rank)
      lines_[rank] = liveness_fds[local];
  }
  ControlBlock& control = machine_->layout.control();
  shared_.emplace(control);
  detector_.machines_error_ = &control.group_error.state;
  RankBlock& own = machine_->layout.block(machine_->local_rank);
  own_record_ = &own.activity;
  detector_.activity_ = ActivityWriter(own_record_);
  const std::string host = host_name();
  std::memcpy(own.host, host.data(), std::min(host.size(), sizeof own.host - 1));  // the block is zeroed before
  own.pid.store(getpid());  // last: it publishes the host's name to a reader that loads the pid first
}

std::string FailureDetector::Impl::name_of_rank(int rank) const {
  const auto named = [rank](int pid, const char* host) {
    return fmt::format("rank {} (pid {} on host {})", rank, pid, host);
  };
  if (links_) return named(links_->pid_of(rank), links_->host_of(rank).c_str());
  const RankBlock& its = block(rank);
  const int pid = its.pid.load();
  return pid != 0 ? named(pid, its.host) : fmt::format("rank {}", rank);  // not registered yet
}

std::string FailureDetector::Impl::last_seen(int rank) {
  const Lock lock(mutex_);
  look_at_machine();
  return rank == place_.rank ? "" : did_last(rank);
}

// All other ranks have entered the calls that this rank has finished; that may be newer than the last heartbeat.
std::uint64_t FailureDetector::Impl::calls_in_common() const {
  const Activity own = own_record_->read();
  if (own.state() == Activity::kNone || own.kind() == OperationKind::kAllocate)
    return 0;  // allocations have their own numbers
  return own.state() == Activity::kFinished ? own.sequence() : own.sequence() - 1;
}

std::string FailureDetector::Impl::did_last(int rank) const {
  const Sighting& sighting = peer(rank).sighting;
  const std::uint64_t common = calls_in_common();
  if (sighting.activity.kind() == OperationKind::kAllocate || common <= sighting.activity.sequence())
    return sighting.last_seen(Clock::now());
  if (sighting.seen_at == Clock::time_point{}) return fmt::format("had entered every call up to #{}", common);
  return fmt::format("had entered every call up to #{}, and its last heartbeat came {} ago", common,
                     seconds_text(Clock::now() - sighting.seen_at));
}

std::string FailureDetector::Impl::whereabouts(int rank) const {
  const Sighting& sighting = peer(rank).sighting;
  const std::uint64_t common = calls_in_common();
  if (peer(rank).left.load()) return "has left the group";
  if (sighting.activity.kind() == OperationKind::kAllocate || common <= sighting.activity.sequence())
    return sighting.whereabouts(Clock::now());
  return fmt::format("has entered every call up to #{} and not the next", common);
}

std::string FailureDetector::Impl::describe_absence(const Operation& operation, Clock::duration waited,
                                                    const std::vector<int>& absent, std::string_view did_not) {
  constexpr std::size_t kInDetail = 3;
  const Lock lock(mutex_);
  look_at_machine();
  std::string names, details;
  for (std::size_t i = 0; i < absent.size(); ++i) {
    const int rank = absent[i];
    names += (i == 0 ? "" : ", ") + (i < kInDetail ? name_of_rank(rank) : fmt::format("rank {}", rank));
    if (i >= kInDetail) continue;
    details += fmt::format("; rank {} {}", rank, whereabouts(rank));
  }
  return fmt::format("rank {} waited {:.1f} s in {} #{} for {}, which did not {}{}{}", place_.rank,
                     std::chrono::duration<double>(waited).count(), lockstep::name_of(operation.signature.kind),
                     operation.signature.sequence, names, did_not, details, slurm::how_to_end_step(env::text));
}

std::chrono::nanoseconds FailureDetector::Impl::slept() const {
  const Lock lock(mutex_);
  return thread_.joinable() ? clock_.slept(Clock::now()) : std::chrono::nanoseconds(0);
}

// -- the group error

void FailureDetector::Impl::declare(GroupErrorKind kind, const std::string& text) {
  Lock lock(mutex_);
  propose({kind, text}, lock);
  settled_.wait_until(lock, proposed_at_ + kLongestAgreement, [this] { return detector_.over(); });
  if (!detector_.over()) settle(proposed_, lock);
}

void FailureDetector::Impl::propose(GroupError group_error, Lock& lock) {
  if (detector_.over()) return;
  if (!links_) return settle(group_error, lock);
  if (proposed_.kind == GroupErrorKind::kNone) {
    proposed_ = std::move(group_error);
    proposed_at_ = Clock::now();
  }
  pursue(lock);
}

// The lowest living rank decides; a rank that has left decides only if it is alone.
int FailureDetector::Impl::deciding_rank() const {
  for (int rank = 0; rank < place_.world_size; ++rank) {
    const Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (rank == place_.rank ? !left_ : !peer.left && !peer.gone && !peer.passed_over) return rank;
  }
  return place_.rank;
}

void FailureDetector::Impl::pursue(Lock& lock) {
  while (proposed_.kind != GroupErrorKind::kNone && !detector_.over()) {
    const int decides = deciding_rank();
    const auto now = Clock::now();
    if (decides == place_.rank || now >= proposed_at_ + kLongestAgreement) return settle(proposed_, lock);
    if (decides != proposed_to_) {
      proposed_to_ = decides;
      ask_until_ = now + kTimeToAnswer;
      links_->tell(decides, ControlMessage::kProposal, proposed_);
      wake_thread();  // the thread watches the time of the answer
    }
    if (now < ask_until_) return;
    peers_[static_cast<std::size_t>(decides)].passed_over = true;
  }
}

// Callbacks run without the lock: they may ask the failure detector for names.
void FailureDetector::Impl::settle(const GroupError& group_error, Lock& lock) {
  if (detector_.over_.load()) return;
  if (shared_)
    shared_->declare(group_error.kind, group_error.text);
  else
    own_.declare(group_error.kind, group_error.text);
  detector_.over_.store(true);
  if (links_) links_->tell_all(ControlMessage::kGroupError, this->group_error());
  if (machine_) machine_->provider->wake_peers();
  settled_.notify_all();
  const auto wakes = std::exchange(wakes_, {});
  lock.unlock();
  for (const auto& wake : wakes) wake();
  lock.lock();
}

bool FailureDetector::Impl::await_over(std::chrono::milliseconds at_most) {
  Lock lock(mutex_);
  return settled_.wait_for(lock, at_most, [this] { return detector_.over(); });
}

void FailureDetector::Impl::on_over(std::function<void()> wake) {
  {
    const std::lock_guard lock(mutex_);
    if (!detector_.over_.load()) return wakes_.push_back(std::move(wake));
  }
  wake();
}

void FailureDetector::Impl::leave() noexcept {
  const std::lock_guard lock(mutex_);
  if (std::exchange(left_, true)) return;
  if (machine_) {
    machine_->layout.block(machine_->local_rank).left.store(1);
    shared_->wake_all();
  }
  if (links_) links_->tell_all(ControlMessage::kGoodbye);
}

// -- the facade

FailureDetector::FailureDetector(const FailureDetectorOptions& options, const MachinePeers& machine)
    : impl_(std::make_unique<Impl>(*this, options, &machine, std::vector<TcpPeer>())) {}
FailureDetector::FailureDetector(const FailureDetectorOptions& options, std::vector<TcpPeer> links,
                                 const MachinePeers* machine)
    : impl_(std::make_unique<Impl>(*this, options, machine, std::move(links))) {}
FailureDetector::~FailureDetector() = default;

GroupError FailureDetector::group_error() const { return impl_->group_error(); }
void FailureDetector::declare(GroupErrorKind kind, const std::string& text) { impl_->declare(kind, text); }
bool FailureDetector::await_over(std::chrono::milliseconds at_most) { return impl_->await_over(at_most); }
void FailureDetector::on_over(std::function<void()> wake) { impl_->on_over(std::move(wake)); }
std::chrono::nanoseconds FailureDetector::slept() const { return impl_->slept(); }
std::string FailureDetector::last_seen(int rank) const { return impl_->last_seen(rank); }
std::string FailureDetector::describe_absence(const Operation& operation, std::chrono::steady_clock::duration waited,
                                              const std::vector<int>& absent, std::string_view did_not) const {
  return impl_->describe_absence(operation, waited, absent, did_not);
}
std::string FailureDetector::name_of_rank(int rank) const { return impl_->name_of_rank(rank); }
int FailureDetector::rank_of_local(int local_rank) const { return impl_->rank_of_local(local_rank); }
int FailureDetector::rank() const { return impl_->place_.rank; }
void FailureDetector::leave() noexcept { impl_->leave(); }
bool FailureDetector::has_left(int rank) const { return impl_->has_left(rank); }
void FailureDetector::wake_all() { impl_->wake_all(); }
void FailureDetector::stop() noexcept { impl_->stop(); }

}  // namespace lockstep::host

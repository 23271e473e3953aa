#include "src/comm/ring/group_watch.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>

#include "lockstep/core/error.h"
#include "src/comm/ring/watch_links.h"

namespace lockstep::ring {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kTimeToAnswer = std::chrono::milliseconds(500);       // of one rank that is asked for the verdict
constexpr auto kLongestAgreement = std::chrono::milliseconds(1500);  // then every rank believes itself

}  // namespace

class GroupWatch::Impl {
 public:
  Impl(GroupWatch& watch, const WatchOptions& options, const WatchedMachine* machine, std::vector<TcpPeer> links);
  ~Impl() { stop(); }

  Verdict verdict() const { return shared_ ? shared_->get() : own_.get(); }
  void declare(VerdictKind kind, const std::string& text);
  bool await_over(std::chrono::milliseconds at_most);
  void on_over(std::function<void()> wake);
  std::string name_of_rank(int rank) const;
  int rank_of_local(int local_rank) const { return machine_ ? machine_->ranks[static_cast<std::size_t>(local_rank)] : local_rank; }
  void leave() noexcept;
  bool has_left(int rank) const { return peers_[static_cast<std::size_t>(rank)].left.load(); }
  void ring_bell() {
    if (shared_) shared_->ring_bell();
  }
  void stop() noexcept;

  const Place place_;

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Peer {
    std::atomic<bool> left{false};  // said goodbye
    bool gone = false;              // died, as far as this rank can see
    bool passed_over = false;       // did not answer a proposal in time
    int local_rank = -1;            // in the control block
  };

  void sign_in();
  void watch();
  int poll_timeout() const;
  void read_lines(const std::vector<pollfd>& polls);
  void read_links(Lock& lock);
  void lost(int rank, Lock& lock);
  void propose(Verdict verdict, Lock& lock);
  void pursue(Lock& lock);
  int judge() const;
  void settle(const Verdict& verdict, Lock& lock);
  void wake_thread() noexcept;
  RankBlock& block(int rank) const { return machine_->layout.block(peers_[static_cast<std::size_t>(rank)].local_rank); }

  GroupWatch& watch_;
  const std::optional<WatchedMachine> machine_;
  std::optional<SharedVerdict> shared_;
  LocalVerdict own_;
  std::optional<WatchLinks> links_;
  std::vector<Peer> peers_;  // by rank

  mutable std::mutex mutex_;  // guards what is not atomic
  std::condition_variable settled_;
  std::vector<std::function<void()>> wakes_;
  Verdict proposed_;  // by this rank; kNone: nothing
  Clock::time_point proposed_at_{}, ask_until_{};
  int asked_ = -1;          // who is to decide on it
  bool left_ = false;       // this rank said goodbye
  std::vector<int> lines_;  // life lines by rank of the group; -1: none, or gone
  std::vector<bool> line_has_rung_;
  Fd wake_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

GroupWatch::Impl::Impl(GroupWatch& watch, const WatchOptions& options, const WatchedMachine* machine, std::vector<TcpPeer> links)
    : place_(options.place),
      watch_(watch),
      machine_(machine != nullptr ? std::optional(*machine) : std::nullopt),
      peers_(static_cast<std::size_t>(options.place.world_size)),
      lines_(peers_.size(), -1),
      line_has_rung_(peers_.size()),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) throw Error("ring: cannot watch the peers: {}", std::strerror(errno));
  if (machine_) sign_in();
  if (!links.empty()) links_.emplace(place_.rank, std::move(links), Clock::now() + options.store_timeout);
  if (place_.world_size > 1) thread_ = std::thread([this] { this->watch(); });
}

void GroupWatch::Impl::sign_in() {
  const auto life_lines = machine_->fabric->life_lines();
  for (std::size_t local = 0; local < machine_->ranks.size(); ++local) {
    const auto rank = static_cast<std::size_t>(machine_->ranks[local]);
    peers_[rank].local_rank = static_cast<int>(local);
    if (local < life_lines.size() && static_cast<int>(local) != machine_->local_rank) lines_[rank] = life_lines[local];
  }
  ControlBlock& control = machine_->layout.control();
  shared_.emplace(control);
  watch_.machines_verdict_ = &control.verdict.state;
  RankBlock& own = machine_->layout.block(machine_->local_rank);
  const std::string host = host_name();
  std::memcpy(own.host, host.c_str(), std::min(host.size() + 1, sizeof own.host));
  own.pid.store(getpid());  // last: who sees it sees the host's name
}

std::string GroupWatch::Impl::name_of_rank(int rank) const {
  const auto named = [rank](int pid, const char* host) { return fmt::format("rank {} (pid {} on host {})", rank, pid, host); };
  if (links_) return named(links_->pid_of(rank), links_->host_of(rank).c_str());
  const RankBlock& its = block(rank);
  const int pid = its.pid.load();
  return pid != 0 ? named(pid, its.host) : fmt::format("rank {}", rank);  // it has not come yet
}

// -- the verdict

void GroupWatch::Impl::declare(VerdictKind kind, const std::string& text) {
  Lock lock(mutex_);
  propose({kind, text}, lock);
  settled_.wait_until(lock, proposed_at_ + kLongestAgreement, [this] { return watch_.over(); });
  if (!watch_.over()) settle(proposed_, lock);
}

void GroupWatch::Impl::propose(Verdict verdict, Lock& lock) {
  if (watch_.over()) return;
  if (!links_) return settle(verdict, lock);
  if (proposed_.kind == VerdictKind::kNone) {
    proposed_ = std::move(verdict);
    proposed_at_ = Clock::now();
  }
  pursue(lock);
}

// The lowest rank that lives decides; a rank that has left only if it is alone.
int GroupWatch::Impl::judge() const {
  for (int rank = 0; rank < place_.world_size; ++rank) {
    const Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (rank == place_.rank ? !left_ : !peer.left && !peer.gone && !peer.passed_over) return rank;
  }
  return place_.rank;
}

void GroupWatch::Impl::pursue(Lock& lock) {
  while (proposed_.kind != VerdictKind::kNone && !watch_.over()) {
    const int decides = judge();
    const auto now = Clock::now();
    if (decides == place_.rank || now >= proposed_at_ + kLongestAgreement) return settle(proposed_, lock);
    if (decides != asked_) {
      asked_ = decides;
      ask_until_ = now + kTimeToAnswer;
      links_->tell(decides, WatchNews::kProposal, proposed_);
      wake_thread();  // it looks after the answer's time
    }
    if (now < ask_until_) return;
    peers_[static_cast<std::size_t>(decides)].passed_over = true;
  }
}

// Callbacks run without the lock: they may ask the watch for names.
void GroupWatch::Impl::settle(const Verdict& verdict, Lock& lock) {
  if (watch_.over_.load()) return;
  if (shared_)
    shared_->declare(verdict.kind, verdict.text);
  else
    own_.declare(verdict.kind, verdict.text);
  watch_.over_.store(true);
  if (links_) links_->tell_all(WatchNews::kVerdict, this->verdict());
  if (machine_) machine_->fabric->ring();
  settled_.notify_all();
  const auto wakes = std::exchange(wakes_, {});
  lock.unlock();
  for (const auto& wake : wakes) wake();
  lock.lock();
}

bool GroupWatch::Impl::await_over(std::chrono::milliseconds at_most) {
  Lock lock(mutex_);
  return settled_.wait_for(lock, at_most, [this] { return watch_.over(); });
}

void GroupWatch::Impl::on_over(std::function<void()> wake) {
  {
    const std::lock_guard lock(mutex_);
    if (!watch_.over_.load()) return wakes_.push_back(std::move(wake));
  }
  wake();
}

void GroupWatch::Impl::leave() noexcept {
  const std::lock_guard lock(mutex_);
  if (std::exchange(left_, true)) return;
  if (machine_) {
    machine_->layout.block(machine_->local_rank).left.store(1);
    shared_->ring_bell();
  }
  if (links_) links_->tell_all(WatchNews::kGoodbye);
}

// -- the thread

void GroupWatch::Impl::wake_thread() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);  // full: it is awake already
}

void GroupWatch::Impl::stop() noexcept {
  if (!thread_.joinable()) return;
  stop_.store(true);
  wake_thread();
  thread_.join();
}

// polls[0] is the wake signal, polls[r + 1] the life line of rank r; a negative descriptor is passed over. Then the links.
void GroupWatch::Impl::watch() {
  std::vector<pollfd> polls;
  Lock lock(mutex_);
  while (!stop_.load()) {
    polls.assign(1, {wake_.get(), POLLIN, 0});
    for (std::size_t rank = 0; rank < lines_.size(); ++rank)
      polls.push_back({lines_[rank], static_cast<short>(line_has_rung_[rank] ? 0 : POLLIN), 0});
    if (links_) links_->add_to(polls);
    const int timeout = poll_timeout();
    lock.unlock();
    poll(polls.data(), polls.size(), timeout);
    std::uint64_t count;
    [[maybe_unused]] const auto taken = ::read(wake_.get(), &count, sizeof count);
    lock.lock();
    read_lines(polls);
    if (watch_.over()) settle(verdict(), lock);  // another rank of this machine wrote it
    for (int rank = 0; rank < place_.world_size; ++rank)
      if ((polls[static_cast<std::size_t>(rank) + 1].revents & POLLHUP) != 0) lost(rank, lock);
    if (links_) read_links(lock);
    pursue(lock);
  }
}

int GroupWatch::Impl::poll_timeout() const {
  if (proposed_.kind == VerdictKind::kNone || watch_.over()) return -1;
  return remaining_ms(std::min(ask_until_, proposed_at_ + kLongestAgreement));
}

// A byte in a life line is a bell, which nobody takes out: all who watch the line must see it.
void GroupWatch::Impl::read_lines(const std::vector<pollfd>& polls) {
  for (std::size_t rank = 0; rank < lines_.size(); ++rank) {
    if ((polls[rank + 1].revents & POLLIN) != 0) line_has_rung_[rank] = true;
    if ((polls[rank + 1].revents & POLLHUP) != 0) lines_[rank] = -1;
    if (peers_[rank].local_rank >= 0 && block(static_cast<int>(rank)).left.load() != 0) peers_[rank].left.store(true);
  }
}

// Whoever is told a verdict may end at once: news of verdicts come before news of ends, whichever link they come on.
void GroupWatch::Impl::read_links(Lock& lock) {
  std::vector<WatchNews> news;
  links_->flush();
  links_->receive(news);
  for (const WatchNews& each : news) {
    if (each.kind == WatchNews::kGoodbye) peers_[static_cast<std::size_t>(each.from)].left.store(true);
    if (each.kind == WatchNews::kVerdict) settle(each.verdict, lock);
  }
  for (const WatchNews& each : news)
    if (each.kind == WatchNews::kProposal) settle(each.verdict, lock);
  for (const WatchNews& each : news)
    if (each.kind == WatchNews::kClosed) lost(each.from, lock);
}

void GroupWatch::Impl::lost(int rank, Lock& lock) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  if (peer.left.load() || left_) return;
  peer.gone = true;
  propose({VerdictKind::kPeerLost, name_of_rank(rank) + " died: its process is gone without a goodbye"}, lock);
}

// -- the facade

GroupWatch::GroupWatch(const WatchOptions& options, const WatchedMachine& machine)
    : impl_(std::make_unique<Impl>(*this, options, &machine, std::vector<TcpPeer>())) {}
GroupWatch::GroupWatch(const WatchOptions& options, std::vector<TcpPeer> links, const WatchedMachine* machine)
    : impl_(std::make_unique<Impl>(*this, options, machine, std::move(links))) {}
GroupWatch::~GroupWatch() = default;

Verdict GroupWatch::verdict() const { return impl_->verdict(); }
void GroupWatch::declare(VerdictKind kind, const std::string& text) { impl_->declare(kind, text); }
bool GroupWatch::await_over(std::chrono::milliseconds at_most) { return impl_->await_over(at_most); }
void GroupWatch::on_over(std::function<void()> wake) { impl_->on_over(std::move(wake)); }
std::string GroupWatch::name_of_rank(int rank) const { return impl_->name_of_rank(rank); }
int GroupWatch::rank_of_local(int local_rank) const { return impl_->rank_of_local(local_rank); }
int GroupWatch::rank() const { return impl_->place_.rank; }
void GroupWatch::leave() noexcept { impl_->leave(); }
bool GroupWatch::has_left(int rank) const { return impl_->has_left(rank); }
void GroupWatch::ring_bell() { impl_->ring_bell(); }
void GroupWatch::stop() noexcept { impl_->stop(); }

}  // namespace lockstep::ring

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <set>
#include <thread>

#include "lockstep/comm/store.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/comm/net/limits.h"
#include "src/comm/net/peer_owner.h"
#include "src/comm/net/socket.h"
#include "src/comm/store/store_answers.h"
#include "src/comm/store/store_connection.h"

namespace lockstep {

namespace protocol = store_protocol;
using Clock = std::chrono::steady_clock;

namespace {
constexpr auto kHandshakeTime = std::chrono::seconds(10);  // to prove the token; then the connection is closed
// To send a request or receive a reply; then the connection is closed.
constexpr auto kTransferTime = std::chrono::seconds(30);
// How long the machine of a connection with a claim may be silent.
constexpr auto kLostMachine = std::chrono::seconds(15);
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
constexpr int kAcceptAtOnce = 64;
constexpr std::size_t kMaxConnections = 4096;
static_assert(kMaxConnections >= kMaxRanks);
constexpr std::size_t kMaxHalfOpen = 1024;  // the oldest is closed when there are more
constexpr std::size_t kLargeRequestBytes = std::size_t{64} << 20;
constexpr int kReportedRefusals = 20;
using State = StoreConnection::State;
std::atomic<int> servers_of_this_process{0};

}  // namespace

// One thread serves all connections: each request takes little work, and no client waits for another one's bytes.
class StoreServer::Impl : StoreAnswers::Connections {
 public:
  explicit Impl(const StoreServerOptions& options)
      : token_(options.token), insecure_(options.insecure), answers_(*this, options.values) {
    if (options.listen_fd >= 0) {
      listener_ = Fd(options.listen_fd);
      fcntl(listener_.get(), F_SETFL, fcntl(listener_.get(), F_GETFL) | O_NONBLOCK);
    } else {
      listener_ = listen_tcp(options.host, options.port);
    }
    endpoint_ = local_endpoint(listener_.get());
    if (token_.empty() && !options.insecure && !is_loopback(endpoint_.host))
      throw RendezvousError(
          "store: refusing to serve {} without a token, anyone on the network could join the job: set LOCKSTEP_TOKEN "
          "or LOCKSTEP_TOKEN_FILE on every rank, or LOCKSTEP_INSECURE=1 on a network that you trust",
          endpoint_.text());
    wake_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
    if (!wake_ || !epoll_ || !watch(EPOLL_CTL_ADD, wake_.get(), EPOLLIN, &wake_) || !listen_again(EPOLL_CTL_ADD))
      throw Error("store: cannot watch sockets: {}", std::strerror(errno));
    thread_ = std::thread([this] { serve(); });
  }

  ~Impl() {
    const std::uint64_t one = 1;
    if (write(wake_.get(), &one, sizeof one) < 0)
      log::error("store: cannot wake the server thread: {}", std::strerror(errno));
    thread_.join();
  }

  const Endpoint& endpoint() const { return endpoint_; }

 private:
  using List = std::list<StoreConnection>;
  void serve() {
    std::array<epoll_event, 64> happened;
    for (;;) {
      const int count = epoll_wait(epoll_.get(), happened.data(), happened.size(), milliseconds_to_next_event());
      if (count < 0 && errno != EINTR) {
        log::error("store: epoll failed: {}; the store stops", std::strerror(errno));
        return;
      }
      for (int i = 0; i < count; ++i) {
        const epoll_event& event = happened[static_cast<std::size_t>(i)];
        if (event.data.ptr == &wake_) return;
        if (event.data.ptr == &listener_)
          accept_some();
        else
          handle(*static_cast<StoreConnection*>(event.data.ptr), event.events);
      }
      expire();
      read_stuck_connections();
      answers_.notify_of_abandoned_claims();
      gone_.clear();  // no event of this turn refers to them any more
    }
  }

  bool watch(int change, int fd, std::uint32_t events, void* what) const {
    epoll_event event{};
    event.events = events;
    event.data.ptr = what;
    return epoll_ctl(epoll_.get(), change, fd, &event) == 0;
  }
  bool listen_again(int change) {
    return watch(change, listener_.get(), Clock::now() < accept_again_ ? 0u : static_cast<std::uint32_t>(EPOLLIN),
                 &listener_);
  }

  int milliseconds_to_next_event() const {
    auto next = accept_again_ == Clock::time_point{} ? Clock::time_point::max() : accept_again_;
    if (!deadlines_.empty()) next = std::min(next, deadlines_.begin()->first);
    return next == Clock::time_point::max() ? -1 : remaining_ms(next);
  }

  // Accepts only some at a time: a flood of connections must not delay the members.
  void accept_some() {
    for (int turn = 0; turn < kAcceptAtOnce; ++turn) {
      Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!fd) {
        // Without descriptors or memory the listener stays readable: retry later instead of spinning.
        if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
        if (!std::exchange(said_what_is_missing_, true))
          log::warn("store: {}: new connections wait until others end; 'ulimit -n' must allow for every rank",
                    std::strerror(errno));
        accept_again_ = Clock::now() + kAcceptPause;
        listen_again(EPOLL_CTL_MOD);
        return;
      }
      if (half_open_.size() + members_.size() >= kMaxConnections) continue;  // destroys, and so closes, the connection
      if (half_open_.size() >= kMaxHalfOpen) close(half_open_.front());
      StoreConnection& connection = half_open_.emplace_back(std::move(fd), budget_);
      connection.place = std::prev(half_open_.end());
      connection.append(
          protocol::Hello{protocol::kMagic, connection.exchange.emplace(token_, Role::kStoreServer).nonce()});
      set_deadline(connection, Clock::now() + kHandshakeTime);
      connection.events = EPOLLIN;
      if (!watch(EPOLL_CTL_ADD, connection.fd(), connection.events, &connection))
        close(connection);
      else
        settle(connection, connection.flush());
    }
  }

  void close(StoreConnection& connection) {
    if (std::exchange(connection.closed, true)) return;
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.fd(), nullptr);
    connection.drop_input();  // now: others wait for its memory
    answers_.forget(connection);
    set_deadline(connection, {});
    if (connection.stuck) stuck_.erase(std::find(stuck_.begin(), stuck_.end(), &connection));
    gone_.splice(gone_.end(), connection.proved ? members_ : half_open_, connection.place);
  }

  // -- StoreAnswers::Connections

  void set_deadline(StoreConnection& connection, Clock::time_point when) override {
    if (connection.deadline != Clock::time_point{}) deadlines_.erase({connection.deadline, &connection});
    connection.deadline = when;
    if (when != Clock::time_point{}) deadlines_.insert({when, &connection});
  }

  void has_reply(StoreConnection& connection) override {
    set_deadline(connection, {});
    settle(connection, connection.flush());
  }

  // After any progress of a connection: updates what it waits for, and for how long.
  void settle(StoreConnection& connection, State state) {
    if (state == State::kClosed) return close(connection);
    if (state == State::kStuck && !std::exchange(connection.stuck, true)) stuck_.push_back(&connection);
    std::uint32_t events = 0;
    if (connection.wants_to_send()) events |= EPOLLOUT;
    if (!connection.stuck) events |= EPOLLIN;
    if (events != connection.events) watch(EPOLL_CTL_MOD, connection.fd(), connection.events = events, &connection);
    if (!connection.proved || !connection.awaited.empty()) return;  // they have their own deadlines
    const bool in_transfer = !connection.stuck && (connection.wants_to_send() || connection.is_in_a_request());
    if (!in_transfer)
      set_deadline(connection, {});
    else if (connection.deadline == Clock::time_point{})
      set_deadline(connection, Clock::now() + kTransferTime);
  }

  // Closes connections that take too long and answers get()s whose time is over.
  void expire() {
    const auto now = Clock::now();
    if (accept_again_ != Clock::time_point{} && now >= accept_again_) {
      accept_again_ = {};
      listen_again(EPOLL_CTL_MOD);
    }
    while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
      StoreConnection& connection = *deadlines_.begin()->second;
      if (connection.awaited.empty()) {
        close(connection);
        continue;
      }
      answers_.time_out(connection);
    }
  }

  // Reads connections whose large request found no room, in the order of arrival.
  void read_stuck_connections() {
    for (std::size_t turns = stuck_.size();
         turns > 0 && budget_.free() >= protocol::kMaxValueBytes + protocol::kMaxKeyBytes + 64; --turns) {
      StoreConnection& connection = *stuck_.front();
      stuck_.pop_front();
      connection.stuck = false;
      handle(connection, EPOLLIN);
    }
  }

  void handle(StoreConnection& connection, std::uint32_t events) {
    if (connection.closed) return;
    if ((events & EPOLLERR) != 0 || (connection.stuck && (events & EPOLLHUP) != 0)) return close(connection);
    State state = State::kOpen;
    if ((events & (EPOLLIN | EPOLLHUP)) != 0)
      state = connection.proved ? receive_request(connection) : receive_proof(connection);
    settle(connection, state == State::kOpen ? connection.flush() : state);
  }

  State receive_request(StoreConnection& connection) {
    std::optional<StoreConnection::Request> request;
    const State state = connection.receive(request);
    if (state != State::kOpen || !request) return state;
    if (!answers_.answer(connection, *request)) return State::kClosed;
    watch_machine(connection);
    return state;
  }

  // Watches the machine while others depend on it. Without a claim it may be unreachable for longer: a job's later
  // groups meet over the same connection.
  void watch_machine(StoreConnection& connection) const {
    const bool has_claim = answers_.has_claim(connection);
    if (has_claim == std::exchange(connection.machine_is_watched, has_claim)) return;
    notice_lost_machine(connection.fd(), has_claim ? kLostMachine : std::chrono::seconds(0));
  }

  State receive_proof(StoreConnection& connection) {
    std::optional<protocol::ClientProof> client;
    const State state = connection.receive_proof(client);
    if (state != State::kOpen || !client) return state;
    if (client->magic != protocol::kMagic) return State::kClosed;
    connection.exchange->note_peer(client->client_nonce);
    const bool proved =
        connection.exchange->accepts(client->proof) && (insecure_ || !is_excluded(token_, connection.fd()));
    connection.append(
        protocol::ServerProof{proved ? 1u : 0u, proved ? connection.exchange->proof() : crypto::Digest{}});
    if (proved) {
      connection.proved = true;
      set_deadline(connection, {});
      members_.splice(members_.end(), half_open_, connection.place);
    } else {
      report_refusal(connection);
      connection.close_when_sent = true;
    }
    return State::kOpen;
  }

  // An unauthenticated peer that keeps trying must not fill the log.
  void report_refusal(const StoreConnection& connection) {
    if (++refusals_ > kReportedRefusals) return;
    const char* const end = refusals_ == kReportedRefusals ? "; further ones are not reported" : "";
    log::warn("store: a connection from {} {}: refused{}", peer_endpoint(connection.fd()).text(),
              refusal_reason(token_), end);
  }

  const std::string token_;
  const bool insecure_;
  ProcessFd listener_;
  Fd wake_, epoll_;
  Endpoint endpoint_;
  Clock::time_point accept_again_{};  // zero: now; the members below belong to the server's thread
  InputBudget budget_{kLargeRequestBytes};
  StoreAnswers answers_;
  List half_open_, members_, gone_;
  std::set<std::pair<Clock::time_point, StoreConnection*>> deadlines_;
  std::deque<StoreConnection*> stuck_;
  int refusals_ = 0;
  bool said_what_is_missing_ = false;
  std::thread thread_;
};

StoreServer::StoreServer(const StoreServerOptions& options) : impl_(std::make_unique<Impl>(options)) {
  ++servers_of_this_process;
}
StoreServer::~StoreServer() { --servers_of_this_process; }
bool StoreServer::is_in_this_process() { return servers_of_this_process.load() > 0; }
Endpoint StoreServer::endpoint() const { return impl_->endpoint(); }

}  // namespace lockstep

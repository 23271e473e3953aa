#include "src/comm/host/wire/tcp_mesh.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <optional>

#include "lockstep/comm/store.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/comm/host/wire/link_handshake.h"
#include "src/comm/net/host_names.h"
#include "src/comm/net/interface.h"
#include "src/comm/net/limits.h"
#include "src/comm/net/peer_owner.h"
#include "src/comm/rendezvous/group_rendezvous.h"

namespace lockstep::host {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxSockets = 16;
constexpr int kFewRanks = 16;
// How long connecting to an unreachable machine is retried; see start_again_or_fail().
constexpr auto kUnreachableTime = std::chrono::seconds(10);
constexpr auto kPauseBetweenTries = std::chrono::milliseconds(100);
constexpr auto kHandshakeTime = std::chrono::seconds(5);  // for a peer that connects and sends little or nothing
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
constexpr int kAcceptAtOnce = 64;
constexpr std::size_t kUnauthenticated = 64;  // half-open handshakes in addition to those of the ranks
constexpr int kReportedUnauthenticated = 10;

// TCP_USER_TIMEOUT is not set here: it would end the connection to a living peer that is late, once its window is full.
// The failure detector's connections notice machines that vanish.
void configure(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// One connection during its handshake.
struct Attempt {
  Fd fd;
  std::optional<LinkHandshake> handshake;  // exists as soon as there is an fd
  Deadline give_up;
  int reached = -1;  // the rank that this connects to; -1: a peer connected to this rank
  int socket = 0;
  Endpoint address = {};
  bool is_connecting = false;
  int failure = 0;           // errno of the last attempt to connect; ECONNRESET: closed in the handshake
  std::string trouble = {};  // the same as text; kept while it is retried
  Deadline again = {};       // when it is retried

  bool is_unauthenticated() const { return reached < 0; }
  short events() const {
    if (is_connecting) return POLLOUT;
    return static_cast<short>((handshake->to_send().empty() ? 0 : POLLOUT) | (handshake->wants_more() ? POLLIN : 0));
  }
};

// Returns the reason if the connection ends; "" if it goes on or is done.
std::string advance(Attempt& attempt) {
  if (attempt.is_connecting) {
    attempt.is_connecting = false;
    attempt.failure = connect_outcome(attempt.fd.get());
    if (attempt.failure != 0) return std::strerror(attempt.failure);
    attempt.trouble.clear();
  }
  LinkHandshake& handshake = *attempt.handshake;
  while (!handshake.refused() && !handshake.done()) {
    const bool sends = !handshake.to_send().empty();
    const auto out = handshake.to_send();
    const auto in = handshake.wanted();
    const ssize_t moved = sends ? send(attempt.fd.get(), out.data(), out.size(), MSG_NOSIGNAL | MSG_DONTWAIT)
                                : recv(attempt.fd.get(), in.data(), in.size(), MSG_DONTWAIT);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return "";
    if (moved <= 0) {
      attempt.failure = ECONNRESET;
      return "it closed the connection in the handshake; does it know another token, or do too many connections arrive "
             "at its port?";
    }
    if (sends)
      handshake.sent(static_cast<std::size_t>(moved));
    else
      handshake.received(static_cast<std::size_t>(moved));
  }
  return handshake.refused() ? "it could not prove that it knows the job's token" : "";
}

// Runs all handshakes of a rank at once: with the lower ranks, to which it connects, and with the peers that connect to
// it.
class MeshBuilder {
 public:
  MeshBuilder(const BackendContext& context, Fd listener, int sockets, Deadline deadline)
      : context_(context),
        listener_(std::move(listener)),
        deadline_(deadline),
        self_{context.place.rank, context.place.world_size, sockets, getpid(), context.token},
        peers_(static_cast<std::size_t>(self_.ranks)) {
    for (TcpPeer& peer : peers_) peer.more.resize(static_cast<std::size_t>(sockets - 1));
    peers_[static_cast<std::size_t>(self_.rank)] = {Fd(), self_.pid};
    missing_ = (self_.ranks - 1) * sockets;
  }

  void reach(int peer, const MeshAddress& address) {
    const std::string host = with_scope_of(address.host, context_.advertise_address);
    for (int socket = 0; socket < self_.sockets; ++socket) {
      attempts_.push_back({Fd(), std::nullopt, deadline_, peer, socket, Endpoint{host, address.port}});
      start(attempts_.back());
    }
  }

  std::vector<TcpPeer> build() {
    while (missing_ > 0) {
      poll_all();
      if (polls_[0].revents != 0) accept_some();
      std::size_t entry = 1;
      for (auto it = attempts_.begin(); entry < polls_.size(); ++entry) {
        const bool stays = polls_[entry].revents == 0 ? goes_on(*it) : move(*it);
        it = stays ? std::next(it) : attempts_.erase(it);
      }
    }
    return std::move(peers_);
  }

 private:
  void poll_all() {
    Deadline next = std::min(deadline_, look_around_);
    const bool accepting = Clock::now() >= accept_again_;
    polls_.assign({{listener_.get(), static_cast<short>(accepting ? POLLIN : 0), 0}});
    if (!accepting) next = std::min(next, accept_again_);
    for (const Attempt& attempt : attempts_) {
      polls_.push_back({attempt.fd.get(), attempt.events(), 0});
      next = std::min(next, attempt.again != Deadline{} ? attempt.again : attempt.give_up);
    }
    next = std::min(next, Clock::now() + notice_.until_next());
    if (poll(polls_.data(), polls_.size(), remaining_ms(next)) < 0 && errno != EINTR)
      throw Error("backend host: poll: {}", std::strerror(errno));
    if (Clock::now() >= deadline_) report_missing();
    notice_.look([this] { return fmt::format("ranks {} of {} to connect", incomplete(), self_.ranks); });
    if (Clock::now() < look_around_) return;
    check_presence(context_, deadline_);
    look_around_ = Clock::now() + kPresenceTime;
  }

  // New connections are polled from the next turn on, after the existing ones. Only some are accepted in each turn, so
  // that a flood of connections cannot starve the others.
  void accept_some() {
    for (int turn = 0; turn < kAcceptAtOnce; ++turn) {
      Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!fd) {
        // Without descriptors or memory the listener stays readable: retry later instead of spinning.
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != ECONNABORTED && errno != EINTR)
          accept_again_ = Clock::now() + kAcceptPause;
        return;
      }
      if (unauthenticated() >= kUnauthenticated + static_cast<std::size_t>(missing_)) drop_oldest_unauthenticated();
      attempts_.push_back(
          {std::move(fd), LinkHandshake::accept(self_), std::min(deadline_, Clock::now() + kHandshakeTime)});
    }
  }

  std::size_t unauthenticated() const {
    return static_cast<std::size_t>(
        std::count_if(attempts_.begin(), attempts_.end(), [](const Attempt& a) { return a.is_unauthenticated(); }));
  }
  // Never drops a connection in polls_, whose entries must keep their places; it ends in the next turn.
  void drop_oldest_unauthenticated() {
    const auto oldest = std::find_if(attempts_.begin(), attempts_.end(), [](const Attempt& a) {
      return a.is_unauthenticated() && a.give_up != Deadline{};
    });
    if (oldest != attempts_.end()) oldest->give_up = Deadline{};
  }

  void start(Attempt& attempt) {
    attempt.handshake.emplace(LinkHandshake::connect(self_, attempt.reached, attempt.socket));
    attempt.again = {};
    attempt.fd = start_connect_tcp(attempt.address.host, attempt.address.port, attempt.trouble, attempt.failure,
                                   context_.advertise_address);
    attempt.is_connecting = static_cast<bool>(attempt.fd);
    if (!attempt.fd) start_again_or_fail(attempt);
  }
  // A machine on whose network no host answers, or whose own address is not usable yet, may be starting up. A rank that
  // is flooded with connections closes the oldest unauthenticated one.
  void start_again_or_fail(Attempt& attempt) const {
    const int why = attempt.failure;
    const bool is_unreachable = why == EHOSTUNREACH || why == ENETUNREACH || why == EADDRNOTAVAIL;
    const Deadline until = why == ECONNRESET ? deadline_ : is_unreachable ? unreachable_until_ : Deadline{};
    if (Clock::now() >= until) fail(attempt);
    attempt.fd = Fd();
    attempt.again = Clock::now() + kPauseBetweenTries;
  }

  bool goes_on(Attempt& attempt) {
    if (attempt.again != Deadline{} && Clock::now() >= attempt.again) start(attempt);
    if (Clock::now() < attempt.give_up) return true;
    report(attempt, "it took too long");
    return false;
  }

  // Returns false if the connection has ended, successfully or not.
  bool move(Attempt& attempt) {
    std::string trouble = advance(attempt);
    if (trouble.empty() && attempt.handshake->done() && is_excluded(context_.token, attempt.fd.get()))
      trouble = "its process is another user's or has left, and the job has no token";
    if (!trouble.empty()) {
      if (attempt.is_unauthenticated()) {
        report(attempt, trouble);
        return false;
      }
      attempt.trouble = trouble;
      start_again_or_fail(attempt);
      return true;
    }
    if (!attempt.handshake->done()) return goes_on(attempt);
    TcpPeer& peer = peers_[static_cast<std::size_t>(attempt.handshake->peer())];
    const auto socket = static_cast<std::size_t>(attempt.handshake->socket());
    ProcessFd& place = socket == 0 ? peer.socket : peer.more[socket - 1];
    if (place) {
      report(attempt, "that rank is connected already");
      return false;
    }
    configure(attempt.fd.get());
    place = std::move(attempt.fd);
    peer.pid = attempt.handshake->pid();
    --missing_;
    return false;
  }

  [[noreturn]] void fail(const Attempt& attempt) const {
    throw_if_a_rank_has_exited(context_);
    throw RendezvousError("backend host: rank {} cannot reach rank {} at {}: {}", self_.rank, attempt.reached,
                          attempt.address.text(), attempt.trouble);
  }

  // An unauthenticated peer that keeps trying must not fill the log.
  void report(const Attempt& attempt, const std::string& why) {
    if (++reported_ > kReportedUnauthenticated) return;
    log::warn("backend host: a connection from {} to rank {} failed in its handshake ({}); closed{}",
              peer_endpoint(attempt.fd.get()).text(), self_.rank, why,
              reported_ == kReportedUnauthenticated ? "; further ones are not reported" : "");
  }

  std::string incomplete() const {
    std::string ranks;
    for (int peer = 0; peer < self_.ranks; ++peer) {
      const TcpPeer& at = peers_[static_cast<std::size_t>(peer)];
      const bool complete = at.socket && std::all_of(at.more.begin(), at.more.end(),
                                                     [](const ProcessFd& fd) { return static_cast<bool>(fd); });
      if (peer != self_.rank && !complete) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", peer);
    }
    return ranks;
  }

  [[noreturn]] void report_missing() const {
    for (const Attempt& attempt : attempts_)
      if (!attempt.trouble.empty()) fail(attempt);
    throw RendezvousError("backend host: rank {} waited on {} for ranks {}, which did not connect in time", self_.rank,
                          context_.advertise_address, incomplete());
  }

  const BackendContext& context_;
  const Fd listener_;
  const Deadline deadline_;
  const Deadline unreachable_until_ = std::min(deadline_, Clock::now() + kUnreachableTime);
  const LinkHandshake::Self self_;
  std::vector<TcpPeer> peers_;
  std::list<Attempt> attempts_;
  std::vector<pollfd> polls_;
  Deadline accept_again_{};
  WaitNotice notice_;
  Deadline look_around_ = Clock::now() + kPresenceTime;
  int missing_ = 0;
  int reported_ = 0;
};

}  // namespace

int wanted_sockets_per_peer(int ranks) {
  return static_cast<int>(env::integer(env::kSocketsPerPeer, 1, kMaxSockets).value_or(ranks <= kFewRanks ? 2 : 1));
}

std::string to_text(const MeshAddress& address) {
  return fmt::format("{} {} {}", address.host, address.port, address.sockets);
}

MeshAddress parse_mesh_address(const std::string& text) {
  const std::size_t first = text.find(' '), second = text.find(' ', first + 1);
  if (first == std::string::npos || second == std::string::npos) throw Error("its address '{}' is damaged", text);
  const long port = env::parse_integer("port", text.substr(first + 1, second - first - 1), 1, kMaxPort);
  const long sockets = env::parse_integer("sockets", text.substr(second + 1), 1, kMaxSockets);
  return {text.substr(0, first), static_cast<std::uint16_t>(port), static_cast<int>(sockets)};
}

void shut_down(const std::vector<TcpPeer>& peers) noexcept {
  for (const TcpPeer& peer : peers) {
    if (peer.socket) shutdown(peer.socket.get(), SHUT_RDWR);
    for (const ProcessFd& socket : peer.more) shutdown(socket.get(), SHUT_RDWR);
  }
}

// The setting that determined this rank's address.
std::string origin_of_address() {
  if (const auto interface = env::text(env::kInterface)) return fmt::format("{}={}", env::kInterface, *interface);
  if (env::text("KUBERNETES_SERVICE_HOST"))
    return "the pod's own, since KUBERNETES_SERVICE_HOST is set without LOCAL_RANK";
  if (const auto master = env::text(env::kMasterAddr))
    return fmt::format("the way to {}={}", env::kMasterAddr, *master);
  return "the way to rank 0";
}

// Without a token every process that reaches the port could join as a rank.
void check_may_listen(const BackendContext& context) {
  if (!context.token.empty() || is_loopback(context.advertise_address) ||
      env::integer(env::kInsecure, 0, 1).value_or(0) == 1)
    return;
  throw RendezvousError(
      "backend host: rank {} would listen for the other ranks on {} ({}), which is not loopback, and the job has no "
      "token, anyone on the network could join it: {}; or, with all ranks on this machine, {}=lo",
      context.place.rank, context.advertise_address, origin_of_address(), kHowToMakeAToken, env::kInterface);
}

// Every rank connects to the lower ones and accepts the higher ones, all at once.
std::vector<TcpPeer> connect_mesh(const BackendContext& context, const std::string& name, int sockets) {
  const Deadline deadline = Clock::now() + context.store_timeout;
  const int rank = context.place.rank;
  if (context.place.world_size == 1) {
    std::vector<TcpPeer> alone(1);
    alone[0].pid = getpid();
    return alone;
  }
  check_may_listen(context);
  Fd listener = listen_tcp(context.advertise_address, 0);
  const MeshAddress mine{without_scope(context.advertise_address), local_endpoint(listener.get()).port, sockets};
  context.store->set(fmt::format("{}/address/{}", name, rank), to_text(mine));
  std::vector<MeshAddress> lower;
  for (int peer = 0; peer < rank; ++peer)
    lower.push_back(parse_mesh_address(await_value(context, peer, fmt::format("{}/address/{}", name, peer))));
  MeshBuilder builder(context, std::move(listener), rank == 0 ? sockets : lower[0].sockets, deadline);
  for (int peer = 0; peer < rank; ++peer) builder.reach(peer, lower[static_cast<std::size_t>(peer)]);
  return builder.build();
}

}  // namespace lockstep::host

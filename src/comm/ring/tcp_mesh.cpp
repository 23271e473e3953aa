#include "src/comm/ring/tcp_mesh.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <type_traits>

#include "lockstep/comm/store.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/comm/socket.h"
#include "src/comm/token_proof.h"

namespace lockstep::ring {

namespace {

using Clock = std::chrono::steady_clock;

// A stranger who connects and says nothing must not keep the ranks behind it waiting for long.
constexpr auto kHandshakeTime = std::chrono::seconds(3);
constexpr std::uint64_t kMagic = 0x31676e69726b6c6c;  // "llkring1"

// connector -> acceptor: ConnectorHello; acceptor -> connector: AcceptorHello; connector -> acceptor: its proof.
struct ConnectorHello {
  std::uint64_t magic;
  std::uint32_t rank;
  std::int32_t pid;
  Nonce nonce;
};
struct AcceptorHello {
  std::uint64_t magic;
  std::uint32_t rank;
  std::int32_t pid;
  Nonce nonce;
  crypto::Digest proof;
};

// No TCP_USER_TIMEOUT here: it would end the connection to a peer that lives but is late, once its window is full. Machines that
// vanish are noticed on the watch's connections.
void configure(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void must(IoResult result) {
  if (result == IoResult::kClosed) throw Error("it closed the connection in the handshake; does it know another token?");
  if (result == IoResult::kTimeout) throw Error("no answer in time");
}
template <typename T>
void send_value(const Fd& socket, const T& value, Deadline deadline) {
  static_assert(std::has_unique_object_representations_v<T>);
  must(send_all(socket.get(), std::as_bytes(std::span(&value, 1)), deadline));
}
template <typename T>
T receive_value(const Fd& socket, Deadline deadline) {
  T value;
  must(receive_all(socket.get(), std::as_writable_bytes(std::span(&value, 1)), deadline));
  return value;
}

TcpPeer connect_to(int peer, const BackendContext& context, const std::string& mesh, Deadline deadline) {
  const std::string address = context.store->get(fmt::format("{}/address/{}", mesh, peer), context.store_timeout);
  const int rank = context.place.rank;
  try {
    const std::size_t space = address.rfind(' ');
    if (space == std::string::npos) throw Error("its address is damaged");
    const long port = env::parse_integer("port", address.substr(space + 1), 1, 65535);
    std::string why;
    Fd socket = try_connect_tcp(address.substr(0, space), static_cast<std::uint16_t>(port), deadline, why);
    if (!socket) throw Error("{}", why);
    configure(socket.get());
    const ConnectorHello mine{kMagic, static_cast<std::uint32_t>(rank), getpid(), make_nonce()};
    send_value(socket, mine, deadline);
    const auto theirs = receive_value<AcceptorHello>(socket, deadline);
    if (theirs.magic != kMagic || theirs.rank != static_cast<std::uint32_t>(peer) ||
        !is_proven(theirs.proof, context.token, Role::kLinkAcceptor, mine.nonce, theirs.nonce, peer))
      throw Error("it could not prove that it knows the job's token");
    send_value(socket, prove(context.token, Role::kLinkConnector, mine.nonce, theirs.nonce, rank), deadline);
    return {std::move(socket), theirs.pid};
  } catch (const Error& error) {
    throw RendezvousError("ring: rank {} cannot reach rank {} at {}: {}", rank, peer, address, error.what());
  }
}

// Returns the rank that connected; -1: somebody who is none, or one that is here already.
int welcome_one(Fd socket, const BackendContext& context, std::vector<TcpPeer>& peers, Deadline deadline) {
  const int rank = context.place.rank;
  const auto theirs = receive_value<ConnectorHello>(socket, deadline);
  if (theirs.magic != kMagic || theirs.rank <= static_cast<std::uint32_t>(rank) || theirs.rank >= peers.size()) return -1;
  AcceptorHello mine{kMagic, static_cast<std::uint32_t>(rank), getpid(), make_nonce(), {}};
  mine.proof = prove(context.token, Role::kLinkAcceptor, theirs.nonce, mine.nonce, rank);
  send_value(socket, mine, deadline);
  const auto proof = receive_value<crypto::Digest>(socket, deadline);
  const int peer = static_cast<int>(theirs.rank);
  if (!is_proven(proof, context.token, Role::kLinkConnector, theirs.nonce, mine.nonce, peer)) return -1;
  if (peers[theirs.rank].socket) return -1;
  peers[theirs.rank] = {std::move(socket), theirs.pid};
  return peer;
}

std::string missing_ranks(const std::vector<TcpPeer>& peers, int after) {
  std::string text;
  for (std::size_t rank = static_cast<std::size_t>(after) + 1; rank < peers.size(); ++rank)
    if (!peers[rank].socket) text += fmt::format("{}{}", text.empty() ? "" : ", ", rank);
  return text;
}

void welcome_higher_ranks(const Fd& listener, const BackendContext& context, std::vector<TcpPeer>& peers, Deadline deadline) {
  const int rank = context.place.rank;
  for (int missing = context.place.world_size - 1 - rank; missing > 0;) {
    pollfd entry{listener.get(), POLLIN, 0};
    if (poll(&entry, 1, remaining_ms(deadline)) == 0)
      throw RendezvousError("ring: rank {} waited on {} for ranks {}, which did not connect in time", rank, context.advertise_address,
                            missing_ranks(peers, rank));
    Fd socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) continue;  // gone again
    configure(socket.get());
    try {
      if (welcome_one(std::move(socket), context, peers, std::min(deadline, Clock::now() + kHandshakeTime)) >= 0)
        --missing;
      else
        log::warn("ring: a connection to rank {} did not prove that it belongs to this job; closed", rank);
    } catch (const Error& error) {
      log::warn("ring: a connection to rank {} failed in its handshake ({}); closed", rank, error.what());
    }
  }
}

}  // namespace

// Every rank connects to the lower ones first and then accepts the higher ones: rank 0 accepts at once, so no two wait
// for each other.
std::vector<TcpPeer> connect_mesh(const BackendContext& context, const std::string& name) {
  const Deadline deadline = Clock::now() + context.store_timeout;
  const int rank = context.place.rank;
  std::vector<TcpPeer> peers(static_cast<std::size_t>(context.place.world_size));
  peers[static_cast<std::size_t>(rank)].pid = getpid();
  if (context.place.world_size == 1) return peers;
  const Fd listener = listen_tcp(context.advertise_address, 0);
  context.store->set(fmt::format("{}/address/{}", name, rank),
                     fmt::format("{} {}", context.advertise_address, local_endpoint(listener.get()).port));
  for (int peer = 0; peer < rank; ++peer) peers[static_cast<std::size_t>(peer)] = connect_to(peer, context, name, deadline);
  welcome_higher_ranks(listener, context, peers, deadline);
  return peers;
}

}  // namespace lockstep::ring

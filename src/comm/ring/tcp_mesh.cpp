#include "src/comm/ring/tcp_mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "lockstep/comm/store.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/comm/ring/tcp_socket.h"
#include "src/comm/ring/token_proof.h"

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

template <typename T>
void send_value(int socket, const T& value, Deadline deadline) {
  static_assert(std::has_unique_object_representations_v<T>);
  tcp_send_all(socket, std::as_bytes(std::span(&value, 1)), deadline);
}
template <typename T>
T receive_value(int socket, Deadline deadline) {
  T value;
  tcp_receive_all(socket, std::as_writable_bytes(std::span(&value, 1)), deadline);
  return value;
}

TcpPeer connect_to(int peer, const BackendContext& context, Deadline deadline) {
  const std::string address = context.store->get(fmt::format("tcp/address/{}", peer), context.store_timeout);
  const int rank = context.place.rank;
  try {
    const std::size_t space = address.rfind(' ');
    if (space == std::string::npos) throw Error("its address is damaged");
    const long port = env::parse_integer("port", address.substr(space + 1), 1, 65535);
    UniqueFd socket = tcp_connect(address.substr(0, space), static_cast<std::uint16_t>(port), deadline);
    const ConnectorHello mine{kMagic, static_cast<std::uint32_t>(rank), getpid(), make_nonce()};
    send_value(socket.get(), mine, deadline);
    const auto theirs = receive_value<AcceptorHello>(socket.get(), deadline);
    if (theirs.magic != kMagic || theirs.rank != static_cast<std::uint32_t>(peer) ||
        !is_proven(theirs.proof, context.token, Role::kAcceptor, mine.nonce, theirs.nonce, peer))
      throw Error("it could not prove that it knows the job's token");
    send_value(socket.get(), prove(context.token, Role::kConnector, mine.nonce, theirs.nonce, rank), deadline);
    return {std::move(socket), theirs.pid};
  } catch (const Error& error) {
    throw RendezvousError("ring: rank {} cannot reach rank {} at {}: {}", rank, peer, address, error.what());
  }
}

// Returns the rank that connected; -1: somebody who is none, or one that is here already.
int welcome_one(UniqueFd socket, const BackendContext& context, std::vector<TcpPeer>& peers, Deadline deadline) {
  const int rank = context.place.rank;
  const auto theirs = receive_value<ConnectorHello>(socket.get(), deadline);
  if (theirs.magic != kMagic || theirs.rank <= static_cast<std::uint32_t>(rank) || theirs.rank >= peers.size()) return -1;
  AcceptorHello mine{kMagic, static_cast<std::uint32_t>(rank), getpid(), make_nonce(), {}};
  mine.proof = prove(context.token, Role::kAcceptor, theirs.nonce, mine.nonce, rank);
  send_value(socket.get(), mine, deadline);
  const auto proof = receive_value<crypto::Digest>(socket.get(), deadline);
  const int peer = static_cast<int>(theirs.rank);
  if (!is_proven(proof, context.token, Role::kConnector, theirs.nonce, mine.nonce, peer)) return -1;
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

void welcome_higher_ranks(const UniqueFd& listener, const BackendContext& context, std::vector<TcpPeer>& peers, Deadline deadline) {
  const int rank = context.place.rank;
  for (int missing = context.place.world_size - 1 - rank; missing > 0;) {
    UniqueFd socket;
    try {
      socket = tcp_accept(listener.get(), deadline);
    } catch (const Error& error) {
      throw RendezvousError("ring: rank {} waited on {} for ranks {}: {}", rank, context.advertise_address, missing_ranks(peers, rank),
                            error.what());
    }
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
std::vector<TcpPeer> connect_mesh(const BackendContext& context) {
  const Deadline deadline = Clock::now() + context.store_timeout;
  const int rank = context.place.rank;
  std::vector<TcpPeer> peers(static_cast<std::size_t>(context.place.world_size));
  peers[static_cast<std::size_t>(rank)].pid = getpid();
  if (context.place.world_size == 1) return peers;
  std::uint16_t port = 0;
  UniqueFd listener;
  try {
    listener = tcp_listen(context.advertise_address, port);
  } catch (const Error& error) {
    throw RendezvousError("ring: rank {}: {}", rank, error.what());
  }
  context.store->set(fmt::format("tcp/address/{}", rank), fmt::format("{} {}", context.advertise_address, port));
  for (int peer = 0; peer < rank; ++peer) peers[static_cast<std::size_t>(peer)] = connect_to(peer, context, deadline);
  welcome_higher_ranks(listener, context, peers, deadline);
  return peers;
}

}  // namespace lockstep::ring

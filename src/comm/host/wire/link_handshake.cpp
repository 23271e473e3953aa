#include "src/comm/host/wire/link_handshake.h"

#include <cstring>
#include <type_traits>

namespace lockstep::host {

namespace {

constexpr std::uint64_t kMagic = 0x33676e69726b6c6c;  // "llkring3"

struct ConnectorHello {
  std::uint64_t magic;
  std::uint32_t rank;
  std::int32_t pid;
  std::uint32_t to;      // the rank that it wants to reach
  std::uint32_t socket;  // from 0
  Nonce nonce;
};
struct AcceptorHello {
  std::uint64_t magic;
  std::uint32_t rank;
  std::int32_t pid;
  Nonce nonce;
};

}  // namespace

void LinkHandshake::want(Step step, std::size_t bytes) {
  step_ = step;
  in_.assign(bytes, std::byte{0});
  received_ = 0;
}

template <typename T> void LinkHandshake::say(const T& message) {
  static_assert(std::has_unique_object_representations_v<T>);
  const auto bytes = std::as_bytes(std::span(&message, 1));
  out_.assign(bytes.begin(), bytes.end());
  sent_ = 0;
}

template <typename T> T LinkHandshake::message() const {
  T message;
  std::memcpy(&message, in_.data(), sizeof message);
  return message;
}

LinkHandshake LinkHandshake::connect(const Self& self, int peer, int socket) {
  LinkHandshake link(self);
  link.peer_ = peer;
  link.socket_ = socket;
  link.exchange_.emplace(self.token, Role::kLinkConnector, self.rank);
  link.say(ConnectorHello{kMagic, static_cast<std::uint32_t>(self.rank), self.pid, static_cast<std::uint32_t>(peer),
                          static_cast<std::uint32_t>(socket), link.exchange_->nonce()});
  link.want(Step::kAcceptorHello, sizeof(AcceptorHello));
  return link;
}

LinkHandshake LinkHandshake::accept(const Self& self) {
  LinkHandshake link(self);
  link.want(Step::kConnectorHello, sizeof(ConnectorHello));
  return link;
}

void LinkHandshake::received(std::size_t bytes) {
  received_ += bytes;
  if (received_ < in_.size()) return;
  const Step next = step_ == Step::kConnectorHello   ? answer_connector()
                    : step_ == Step::kAcceptorHello  ? answer_acceptor()
                    : step_ == Step::kConnectorProof ? check_connector()
                                                     : check_acceptor();
  want(next, next == Step::kConnectorProof || next == Step::kAcceptorProof ? sizeof(crypto::Digest) : 0);
}

LinkHandshake::Step LinkHandshake::answer_connector() {
  const auto hello = message<ConnectorHello>();
  const bool is_higher =
      hello.rank > static_cast<std::uint32_t>(self_->rank) && hello.rank < static_cast<std::uint32_t>(self_->ranks);
  if (hello.magic != kMagic || !is_higher || hello.to != static_cast<std::uint32_t>(self_->rank) ||
      hello.socket >= static_cast<std::uint32_t>(self_->sockets))
    return Step::kRefused;
  peer_ = static_cast<int>(hello.rank);
  socket_ = static_cast<int>(hello.socket);
  pid_ = hello.pid;
  exchange_.emplace(self_->token, Role::kLinkAcceptor, self_->rank).note_peer(hello.nonce, peer_);
  say(AcceptorHello{kMagic, static_cast<std::uint32_t>(self_->rank), self_->pid, exchange_->nonce()});
  return Step::kConnectorProof;
}

LinkHandshake::Step LinkHandshake::answer_acceptor() {
  const auto hello = message<AcceptorHello>();
  if (hello.magic != kMagic || hello.rank != static_cast<std::uint32_t>(peer_)) return Step::kRefused;
  pid_ = hello.pid;
  exchange_->note_peer(hello.nonce, peer_);
  say(exchange_->proof());
  return Step::kAcceptorProof;
}

LinkHandshake::Step LinkHandshake::check_connector() {
  if (!exchange_->accepts(message<crypto::Digest>())) return Step::kRefused;
  say(exchange_->proof());
  return Step::kDone;
}

LinkHandshake::Step LinkHandshake::check_acceptor() {
  return exchange_->accepts(message<crypto::Digest>()) ? Step::kDone : Step::kRefused;
}

}  // namespace lockstep::host

// The handshake in which two ranks prove to each other that both belong to the job, before any other data travels. It
// is a state machine over bytes, which knows neither sockets nor clocks.
//
// The connector sends its rank and a nonce; the acceptor its rank and its nonce; the connector its proof; the acceptor
// its proof (see token.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/comm/net/token.h"

namespace lockstep::host {

class LinkHandshake {
 public:
  struct Self {
    int rank;
    int ranks;
    int sockets;  // between two ranks
    std::int32_t pid;
    std::string token;
  };
  static LinkHandshake connect(const Self& self, int peer, int socket);
  static LinkHandshake accept(const Self& self);

  // The buffer for the peer's next bytes, empty if none are expected. Do not read more: the following bytes are data.
  std::span<std::byte> wanted() { return std::span(in_).subspan(received_); }
  bool wants_more() const { return received_ < in_.size(); }
  void received(std::size_t bytes);
  std::span<const std::byte> to_send() const { return std::span(out_).subspan(sent_); }
  void sent(std::size_t bytes) { sent_ += bytes; }

  bool refused() const { return step_ == Step::kRefused; }
  bool done() const { return step_ == Step::kDone && to_send().empty(); }
  // The other side's rank, once done.
  int peer() const { return peer_; }
  int socket() const { return socket_; }
  std::int32_t pid() const { return pid_; }

 private:
  enum class Step { kConnectorHello, kAcceptorHello, kConnectorProof, kAcceptorProof, kDone, kRefused };

  explicit LinkHandshake(const Self& self) : self_(&self) {}
  void want(Step step, std::size_t bytes);
  template <typename T> void say(const T& message);
  template <typename T> T message() const;
  Step answer_connector();
  Step answer_acceptor();
  Step check_connector();
  Step check_acceptor();

  const Self* self_;
  Step step_ = Step::kRefused;
  std::vector<std::byte> in_, out_;
  std::size_t received_ = 0, sent_ = 0;
  int peer_ = -1, socket_ = 0;
  std::int32_t pid_ = 0;
  std::optional<ProofExchange> exchange_;
};

}  // namespace lockstep::host

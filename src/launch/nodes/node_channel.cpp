#include "src/launch/nodes/node_channel.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>

#include <array>
#include <cerrno>
#include <cstring>

#include "src/comm/net/peer_owner.h"
#include "src/comm/store/store_protocol.h"

namespace lockstep::launch {

namespace {

using nlohmann::json;
using Magic = std::array<char, 8>;

constexpr Magic kMagic = {'L', 'O', 'C', 'K', 'N', 'O', 'D', '3'};
constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 20;

struct Hello {
  Magic magic;
  Nonce nonce;
};
struct AgentProof {
  Magic magic;
  Nonce nonce;
  crypto::Digest proof;
};
struct CoordinatorProof {
  std::uint64_t accepted;
  crypto::Digest proof;
};

// Notices a machine that vanishes within 8 s.
void notice_lost_machines(int fd) {
  const int on = 1, idle_s = 2, interval_s = 1, probes = 6, user_timeout_ms = 8000;
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout_ms, sizeof user_timeout_ms);
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

json facts_to_json(const NodeFacts& facts) {
  return {{"node", facts.node},
          {"nodes", facts.nodes},
          {"ranks", facts.ranks},
          {"host", facts.host},
          {"pid", facts.pid},
          {"program_port", facts.program_port},
          {"max_restarts", facts.max_restarts}};
}

NodeFacts facts_from_json(const json& value) {
  return {value.at("node").get<int>(),        value.at("nodes").get<int>(),
          value.at("ranks").get<int>(),       value.at("host").get<std::string>(),
          value.at("pid").get<long>(),        value.at("program_port").get<std::uint16_t>(),
          value.at("max_restarts").get<int>()};
}

json failure_to_json(const std::optional<FirstFailure>& failure) {
  if (!failure) return nullptr;
  return {{"node", failure->node}, {"rank", failure->rank},           {"task", failure->task},
          {"how", failure->how},   {"exception", failure->exception}, {"is_from_outside", failure->is_from_outside}};
}

std::optional<FirstFailure> failure_from_json(const json& value) {
  if (value.is_null()) return std::nullopt;
  FirstFailure failure;
  failure.node = value.at("node").get<int>();
  failure.rank = value.at("rank").get<int>();
  failure.task = value.at("task").get<std::string>();
  failure.how = value.at("how").get<std::string>();
  failure.exception = value.at("exception").get<std::string>();
  failure.is_from_outside = value.at("is_from_outside").get<bool>();
  return failure;
}

template <typename Enum> Enum checked(int value, Enum last) {
  if (value < 0 || value > static_cast<int>(last)) throw std::out_of_range("unknown kind");
  return static_cast<Enum>(value);
}

}  // namespace

std::string encode(const NodeMessage& message) {
  json nodes = json::array();
  for (const NodeFacts& facts : message.nodes) nodes.push_back(facts_to_json(facts));
  const NodeReport& report = message.report;
  const json value = {{"kind", static_cast<int>(message.kind)},
                      {"why", message.why},
                      {"attempt", message.attempt},
                      {"attempt_id", message.attempt_id},
                      {"nodes", std::move(nodes)},
                      {"report",
                       {{"kind", static_cast<int>(report.kind)},
                        {"node", report.node},
                        {"exit_code", report.exit_code},
                        {"signal", report.signal},
                        {"cause", report.cause},
                        {"failure", failure_to_json(report.failure)},
                        {"step", report.step ? json(*report.step) : json(nullptr)},
                        {"restarts", report.restarts},
                        {"pause_s", report.pause_s},
                        {"why_no_restart", report.why_no_restart}}}};
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::optional<NodeMessage> decode(std::string_view text) {
  try {
    const json value = json::parse(text);
    NodeMessage message;
    message.kind = checked(value.at("kind").get<int>(), NodeMessage::Kind::kHeartbeat);
    message.why = value.at("why").get<std::string>();
    for (const json& facts : value.at("nodes")) message.nodes.push_back(facts_from_json(facts));
    const json& report = value.at("report");
    message.report.kind = checked(report.at("kind").get<int>(), NodeReport::Kind::kLost);
    message.report.node = report.at("node").get<int>();
    message.report.exit_code = report.at("exit_code").get<int>() & 0xff;
    message.report.signal = report.at("signal").get<int>();
    message.report.cause = report.at("cause").get<std::string>();
    message.report.failure = failure_from_json(report.at("failure"));
    if (!report.at("step").is_null()) message.report.step = report.at("step").get<std::int64_t>();
    message.report.restarts = report.at("restarts").get<bool>();
    message.report.pause_s = report.at("pause_s").get<int>();
    message.report.why_no_restart = report.at("why_no_restart").get<std::string>();
    message.attempt = value.at("attempt").get<int>();
    message.attempt_id = value.at("attempt_id").get<std::string>();
    return message;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

NodeChannel::NodeChannel(Fd fd, Side side, std::string_view token)
    : fd_(std::move(fd)),
      side_(side),
      token_(token),
      exchange_(token, side == Side::kAgent ? Role::kNodeAgent : Role::kNodeCoordinator) {
  notice_lost_machines(fd_.get());
  if (side_ == Side::kAgent) return;
  put(Hello{kMagic, exchange_.nonce()});
}

void NodeChannel::doubt() const {
  const int user_timeout_ms = 3000;
  ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout_ms, sizeof user_timeout_ms);
}

template <typename T> bool NodeChannel::take(T& value) {
  if (in_.size() < sizeof value) return false;
  std::memcpy(&value, in_.data(), sizeof value);
  in_.erase(0, sizeof value);
  return true;
}

template <typename T> void NodeChannel::put(const T& value) {
  out_.append(reinterpret_cast<const char*>(&value), sizeof value);
  flush();
}

void NodeChannel::send(const NodeMessage& message) {
  const std::string text = encode(message);
  const auto bytes = static_cast<std::uint32_t>(text.size());
  out_.append(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  out_ += text;
  flush();
}

std::optional<NodeMessage> NodeChannel::next() {
  if (messages_.empty()) return std::nullopt;
  NodeMessage message = std::move(messages_.front());
  messages_.pop_front();
  return message;
}

pollfd NodeChannel::to_poll() const {
  return {fd_.get(), static_cast<short>(out_.empty() ? POLLIN : POLLIN | POLLOUT), 0};
}

void NodeChannel::move() {
  flush();
  if (fd_) read();
  if (state_ == State::kShaking) shake_hands();
  if (state_ == State::kOpen) cut_messages();
}

void NodeChannel::flush() {
  while (fd_ && !out_.empty()) {
    const ssize_t sent = ::send(fd_.get(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (sent < 0) {
      out_.clear();  // the peer does not read any more; read() finds the end, and before it the peer's last messages
      break;
    }
    out_.erase(0, static_cast<std::size_t>(sent));
  }
  if (close_when_sent_) fd_.reset();
}

// Messages that arrived before the end are still delivered.
void NodeChannel::read() {
  std::array<char, 1 << 16> bytes;
  const bool is_unauthenticated = side_ == Side::kCoordinator && state_ == State::kShaking;
  const std::size_t limit = is_unauthenticated ? sizeof(AgentProof) : kMaxMessageBytes + sizeof(std::uint32_t);
  for (;;) {
    const ssize_t got = ::recv(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got > 0) in_.append(bytes.data(), static_cast<std::size_t>(got));
    if (got > 0 && in_.size() > limit) return close();
    if (got > 0) continue;
    if (state_ == State::kShaking) shake_hands();
    if (state_ == State::kOpen) cut_messages();
    if (state_ == State::kShaking || state_ == State::kOpen) state_ = State::kClosed;
    return fd_.reset();
  }
}

void NodeChannel::shake_hands() {
  if (side_ == Side::kCoordinator) return verify_agent();
  if (!has_sent_proof_) greet_coordinator();
  if (has_sent_proof_) verify_coordinator();
}

void NodeChannel::greet_coordinator() {
  Hello hello;
  if (!take(hello)) return;
  if (hello.magic != kMagic) {
    state_ = hello.magic == store_protocol::kMagic ? State::kStore : State::kOtherService;
    return fd_.reset();
  }
  exchange_.note_peer(hello.nonce);
  has_sent_proof_ = true;
  put(AgentProof{kMagic, exchange_.nonce(), exchange_.proof()});
}

void NodeChannel::verify_agent() {
  AgentProof agent;
  if (!take(agent)) return;
  if (agent.magic != kMagic) return close();
  exchange_.note_peer(agent.nonce);
  const bool accepted = exchange_.accepts(agent.proof) && !is_excluded(token_, fd_.get());
  state_ = accepted ? State::kOpen : State::kRefused;
  close_when_sent_ = !accepted;
  put(CoordinatorProof{accepted ? 1u : 0u, accepted ? exchange_.proof() : crypto::Digest{}});
}

void NodeChannel::verify_coordinator() {
  CoordinatorProof coordinator;
  if (!take(coordinator)) return;
  const bool proven =
      coordinator.accepted == 1 && exchange_.accepts(coordinator.proof) && !is_excluded(token_, fd_.get());
  state_ = proven ? State::kOpen : State::kRefused;
  if (!proven) fd_.reset();
}

void NodeChannel::cut_messages() {
  std::uint32_t bytes = 0;
  while (in_.size() >= sizeof bytes) {
    std::memcpy(&bytes, in_.data(), sizeof bytes);
    if (bytes > kMaxMessageBytes) return close();
    if (in_.size() < sizeof bytes + bytes) return;
    auto message = decode(std::string_view(in_).substr(sizeof bytes, bytes));
    if (!message) return close();
    messages_.push_back(std::move(*message));
    in_.erase(0, sizeof bytes + bytes);
  }
}

}  // namespace lockstep::launch

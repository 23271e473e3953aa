#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "lockstep/core/error.h"
#include "src/launch/node_link.h"
#include "src/launch/waiting.h"

namespace lockstep::launch {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Node 0 decides within seconds of the first report; one that is frozen keeps its connection.
constexpr seconds kWaitForVerdict(15);
// Node 0 gives up by itself, and says so: this is for one that is frozen.
constexpr int kHostsPatience = 2;

}  // namespace

NodeGuest::NodeGuest(NodeFacts own, const Endpoint& host, std::string token, const NodePatience& patience)
    : NodeLink(std::move(own), patience), host_(host), token_(std::move(token)) {
  connect();
  // As this machine reaches it: no rank has a name to look up.
  store_ = channel_->peer_address();
  channel_->send({.kind = NodeMessage::Kind::kJoin, .nodes = {own_}});
  await_start();
}

void NodeGuest::connect() {
  Waiting waiting(patience_.to_meet);
  for (std::string why;;) {
    if (Fd fd = try_connect_tcp(host_.host, host_.port, waiting.deadline(), why)) {
      channel_.emplace(std::move(fd), NodeChannel::Side::kGuest, token_);
      if (shake_hands(std::min(waiting.deadline(), Clock::now() + kHandshakeTime))) return;
      why = "what answers there is no lockrun";
    }
    if (waiting.is_over())
      throw RendezvousError(
          "node {}: node 0 did not answer at {} within {} s ({}): is its lockrun running, and does --master-addr name it?", own_.node,
          host_.text(), waiting.timeout_s(), why);
    if (waiting.word_is_due())
      fmt::print(stderr, "lockrun: node {} waits for node 0 at {}: {} {}\n", own_.node, host_.text(), why, waiting.progress());
    std::this_thread::sleep_for(kPauseBetweenTries);
  }
}

// False: worth another try.
bool NodeGuest::shake_hands(Clock::time_point until) {
  using State = NodeChannel::State;
  while (channel_->state() == State::kShaking && Clock::now() < until) {
    pollfd polled = channel_->to_poll();
    ::poll(&polled, 1, kLookMs);
    channel_->move();
  }
  if (channel_->state() == State::kRefused)
    throw RendezvousError("node {}: node 0 at {} refuses the token: LOCKSTEP_TOKEN (or LOCKSTEP_TOKEN_FILE) differs between the two",
                          own_.node, host_.text());
  if (channel_->state() == State::kStore)
    throw RendezvousError(
        "node {}: the job at {} runs already, with all its nodes: this lockrun came too late, or another one has its --node-rank",
        own_.node, host_.text());
  return channel_->state() == State::kOpen;
}

void NodeGuest::await_start() {
  Clock::time_point silent_since = Clock::now();
  while (nodes_.empty()) {
    pollfd polled = channel_->to_poll();
    ::poll(&polled, 1, kLookMs);
    channel_->move();
    while (const auto message = channel_->next()) {
      silent_since = Clock::now();
      if (obey(*message)) return;
    }
    if (channel_->state() != NodeChannel::State::kOpen)
      throw RendezvousError("node {}: node 0 at {} left before the start{}", own_.node, host_.text(),
                            last_word_.empty() ? "" : ", while it waited for " + last_word_);
    if (Clock::now() >= silent_since + kHostsPatience * kHandshakeTime)
      throw RendezvousError("node {}: node 0 at {} has said nothing for {} s: is it stopped?", own_.node, host_.text(),
                            std::chrono::seconds(kHostsPatience * kHandshakeTime).count());
  }
}

// While waiting for the start; true when it has come.
bool NodeGuest::obey(const NodeMessage& message) {
  if (message.kind == NodeMessage::Kind::kRefusal)
    throw RendezvousError("node {}: node 0 at {} says: {}", own_.node, host_.text(), message.why);
  if (message.kind == NodeMessage::Kind::kWaiting) {
    last_word_ = message.why;
    fmt::print(stderr, "lockrun: node {} has joined and waits for {}\n", own_.node, message.why);
  }
  if (message.kind != NodeMessage::Kind::kStart) return false;
  const auto is_own = [this](const NodeFacts& facts) { return facts == own_; };
  if (std::count_if(message.nodes.begin(), message.nodes.end(), is_own) != 1 ||
      message.nodes.size() != static_cast<std::size_t>(own_.nodes))
    throw RendezvousError("node {}: node 0 at {} sent a list of nodes that is not this job's", own_.node, host_.text());
  nodes_ = message.nodes;
  return true;
}

void NodeGuest::add_descriptors(std::vector<pollfd>& polled) const {
  if (const pollfd entry = channel_->to_poll(); entry.fd >= 0 && !verdict_) polled.push_back(entry);
}

void NodeGuest::move() {
  if (verdict_) return;
  channel_->move();
  while (auto message = channel_->next()) hear(std::move(*message));
  if (!verdict_ && sign_of_life_) await_verdict();
  if (verdict_) return;
  if (channel_->state() != NodeChannel::State::kOpen)
    verdict_ = loss_of(nodes_.front(), Clock::now());
  else if (reported_ != Clock::time_point() && Clock::now() >= reported_ + kWaitForVerdict)
    verdict_ = silence_of(nodes_.front(), kWaitForVerdict);
}

void NodeGuest::hear(NodeMessage message) {
  if (sign_of_life_) sign_of_life_->heard();
  if (message.kind == NodeMessage::Kind::kAsk) channel_->send({.kind = NodeMessage::Kind::kHere});
  if (message.kind == NodeMessage::Kind::kEnd && !verdict_ && message.report.node >= 0 && message.report.node < own_.nodes)
    verdict_ = std::move(message.report);
}

// This node's ranks have finished, and node 0 has yet to say that the others' have.
void NodeGuest::await_verdict() {
  const auto now = Clock::now();
  if (sign_of_life_->look(now)) channel_->send({.kind = NodeMessage::Kind::kAsk});
  if (sign_of_life_->is_missing()) verdict_ = stall_of(nodes_.front(), patience_.without_sign_of_life, now);
}

void NodeGuest::report(NodeReport report) {
  report.node = own_.node;
  if (report.kind == NodeReport::Kind::kFinished) sign_of_life_.emplace(patience_.without_sign_of_life, Clock::now());
  if (report.kind != NodeReport::Kind::kFinished) {
    reported_ = Clock::now();
    channel_->doubt();
  }
  channel_->send({.kind = NodeMessage::Kind::kReport, .report = std::move(report)});
}

}  // namespace lockstep::launch

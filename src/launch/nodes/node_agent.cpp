#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "lockstep/core/error.h"
#include "src/launch/nodes/node_link.h"
#include "src/launch/supervise/waiting.h"

namespace lockstep::launch {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Node 0 decides within seconds of the first report; a frozen one keeps its connection.
constexpr seconds kWaitForDecision(15);
// Node 0 gives up and reports it by itself; this is for a frozen one.
constexpr int kCoordinatorPatience = 2;

}  // namespace

NodeAgent::NodeAgent(NodeFacts own, const Endpoint& coordinator, std::string token, const NodePatience& patience,
                     const NodeArrival& arrival)
    : NodeLink(std::move(own), patience), coordinator_(coordinator), token_(std::move(token)) {
  Waiting waiting(arrival.leaving.empty() ? patience_.to_meet : std::min(patience_.to_meet, kTimeToTell));
  do {
    connect(waiting, arrival);
    // The address that this machine uses, so that ranks need not resolve a name.
    store_ = channel_->peer_address();
    channel_->send(
        {.kind = NodeMessage::Kind::kJoin, .why = arrival.leaving, .nodes = {own_}, .attempt = arrival.attempt});
  } while (!await_start(arrival));
}

void NodeAgent::connect(Waiting& waiting, const NodeArrival& arrival) {
  for (std::string why;;) {
    if (Fd fd = try_connect_tcp(coordinator_.host, coordinator_.port, waiting.deadline(), why)) {
      channel_.emplace(std::move(fd), NodeChannel::Side::kAgent, token_);
      if (shake_hands(std::min(waiting.deadline(), Clock::now() + kHandshakeTime))) return;
      why = channel_->state() == NodeChannel::State::kStore
                ? "the job runs with all its nodes; a restart would take this one"
            : channel_->state() == NodeChannel::State::kShaking
                ? "a process listens there and does not answer: it is stopped or busy, or has too many open files "
                  "(ulimit -n)"
                : "another service than lockrun answers there";
    }
    if (waiting.is_over())
      throw RendezvousError(
          "node {}: node 0 did not answer at {} within {} s ({}): is its lockrun running, and does --master-addr name "
          "it?",
          own_.node, coordinator_.text(), waiting.timeout_s(), why);
    if (waiting.report_is_due())
      fmt::print(stderr, "lockrun: node {} waits for node 0 at {}: {} {}\n", own_.node, coordinator_.text(), why,
                 waiting.progress());
    std::this_thread::sleep_for(kPauseBetweenTries);
    if (arrival.leaving.empty()) arrival.look();
  }
}

// Returns false if another attempt is worth while.
bool NodeAgent::shake_hands(Clock::time_point until) {
  using State = NodeChannel::State;
  while (channel_->state() == State::kShaking && Clock::now() < until) {
    pollfd polled = channel_->to_poll();
    ::poll(&polled, 1, kLookMs);
    channel_->move();
  }
  if (channel_->state() == State::kRefused && token_.empty())
    throw RendezvousError(
        "node {}: refused: node 0 at {} is another user's process or has a token, and this node has none: give all "
        "nodes the same LOCKSTEP_TOKEN (or LOCKSTEP_TOKEN_FILE)",
        own_.node, coordinator_.text());
  if (channel_->state() == State::kRefused)
    throw RendezvousError(
        "node {}: node 0 at {} refuses the token: LOCKSTEP_TOKEN (or LOCKSTEP_TOKEN_FILE) differs between the two",
        own_.node, coordinator_.text());
  if (channel_->state() == State::kStore && !patience_.is_restartable)
    throw RendezvousError(
        "node {}: the job at {} is already running with all its nodes: this lockrun came too late, or another one has "
        "its --node-rank",
        own_.node, coordinator_.text());
  return channel_->state() == State::kOpen;
}

// Returns false if node 0 was lost and may come back.
bool NodeAgent::await_start(const NodeArrival& arrival) {
  Clock::time_point silent_since = Clock::now();
  while (nodes_.empty()) {
    pollfd polled = channel_->to_poll();
    ::poll(&polled, 1, kLookMs);
    if (arrival.leaving.empty()) arrival.look();
    channel_->move();
    while (const auto message = channel_->next()) {
      silent_since = Clock::now();
      if (obey(*message)) return true;
    }
    const bool is_gone = channel_->state() != NodeChannel::State::kOpen;
    if (is_gone && patience_.is_restartable && arrival.leaving.empty()) return false;
    if (is_gone)
      throw RendezvousError("node {}: node 0 at {} left before the start{}", own_.node, coordinator_.text(),
                            last_status_.empty() ? "" : ", while it waited for " + last_status_);
    if (Clock::now() >= silent_since + kCoordinatorPatience * kHandshakeTime)
      throw RendezvousError("node {}: node 0 at {} has sent nothing for {} s: is it stopped?", own_.node,
                            coordinator_.text(), std::chrono::seconds(kCoordinatorPatience * kHandshakeTime).count());
  }
  return true;
}

// Handles a message while waiting for the start. Returns true when the start has come.
bool NodeAgent::obey(const NodeMessage& message) {
  if (message.kind == NodeMessage::Kind::kRefusal)
    throw RendezvousError("node {}: node 0 at {} reports: {}", own_.node, coordinator_.text(), message.why);
  if (message.kind == NodeMessage::Kind::kWaiting) {
    last_status_ = message.why;
    fmt::print(stderr, "lockrun: node {} has joined and waits for {}\n", own_.node, message.why);
  }
  if (message.kind != NodeMessage::Kind::kStart) return false;
  const auto is_own = [this](const NodeFacts& facts) { return facts == own_; };
  if (std::count_if(message.nodes.begin(), message.nodes.end(), is_own) != 1 ||
      message.nodes.size() != static_cast<std::size_t>(own_.nodes))
    throw RendezvousError("node {}: node 0 at {} sent a list of nodes that is not this job's", own_.node,
                          coordinator_.text());
  nodes_ = message.nodes;
  attempt_ = message.attempt;
  attempt_id_ = message.attempt_id;
  return true;
}

void NodeAgent::add_descriptors(std::vector<pollfd>& polled) const {
  if (const pollfd entry = channel_->to_poll(); entry.fd >= 0 && !decision_) polled.push_back(entry);
}

void NodeAgent::move() {
  if (decision_) return;
  channel_->move();
  while (auto message = channel_->next()) hear(std::move(*message));
  if (!decision_ && heartbeat_) await_decision();
  if (decision_) return;
  if (channel_->state() != NodeChannel::State::kOpen)
    decide_alone(loss_of(nodes_.front(), Clock::now()));
  else if (reported_ != Clock::time_point() && Clock::now() >= reported_ + kWaitForDecision)
    decide_alone(silence_of(nodes_.front(), kWaitForDecision));
}

void NodeAgent::hear(NodeMessage message) {
  if (heartbeat_) heartbeat_->note_heartbeat();
  if (message.kind == NodeMessage::Kind::kHeartbeatRequest) channel_->send({.kind = NodeMessage::Kind::kHeartbeat});
  if (message.kind == NodeMessage::Kind::kEnd && !decision_ && message.report.node >= 0 &&
      message.report.node < own_.nodes)
    decision_ = std::move(message.report);
}

// This node's ranks have finished, and node 0 has not reported yet that the others' have.
void NodeAgent::await_decision() {
  const auto now = Clock::now();
  if (heartbeat_->look(now)) channel_->send({.kind = NodeMessage::Kind::kHeartbeatRequest});
  if (heartbeat_->is_missing()) decide_alone(stall_of(nodes_.front(), patience_.without_heartbeat, now));
}

void NodeAgent::decide_alone(NodeReport report) {
  decision_ = std::move(report);
  has_lost_coordinator_ = true;
}

void NodeAgent::report(NodeReport report) {
  report.node = own_.node;
  if (report.kind == NodeReport::Kind::kFinished) heartbeat_.emplace(patience_.without_heartbeat, Clock::now());
  if (report.kind != NodeReport::Kind::kFinished) {
    reported_ = Clock::now();
    channel_->doubt();
  }
  channel_->send({.kind = NodeMessage::Kind::kReport, .report = std::move(report)});
}

}  // namespace lockstep::launch

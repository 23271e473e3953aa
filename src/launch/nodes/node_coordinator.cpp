#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>

#include "lockstep/core/error.h"
#include "src/comm/net/peer_owner.h"
#include "src/comm/net/socket.h"
#include "src/launch/nodes/node_link.h"
#include "src/launch/supervise/waiting.h"

namespace lockstep::launch {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kMaxUnauthenticated = 256;  // the oldest is closed when there are more
constexpr int kReportedRefusals = 20;
// Once doubted, a connection to a node that is gone ends within 3 s: the cause follows soon after its consequence.
constexpr seconds kWaitForCause(4);
// In addition to the decision: other nodes give their ranks up to 5 s to save and exit, and use the store meanwhile.
constexpr seconds kWaitForNodes(10);

}  // namespace

NodeCoordinator::NodeCoordinator(NodeFacts own, Fd listener, std::string token, const NodePatience& patience,
                                 const NodeArrival& arrival)
    : NodeLink(std::move(own), patience), listener_(std::move(listener)), token_(std::move(token)), roster_(own_) {
  store_ = local_endpoint(listener_.get());
  attempt_ = arrival.attempt;
  attempt_id_ = fresh_token();
  try {
    gather(arrival);
  } catch (const std::exception& error) {
    refuse_all(error.what());
    throw;
  }
  nodes_ = roster_.nodes();
  agents_.remove_if([](const Connection& agent) { return agent.node < 0; });
  send_to_all({.kind = NodeMessage::Kind::kStart, .nodes = nodes_, .attempt = attempt_, .attempt_id = attempt_id_});
}

void NodeCoordinator::refuse_all(const std::string& why) {
  send_to_all({.kind = NodeMessage::Kind::kRefusal, .why = why});
  for (Connection& agent : agents_) agent.channel.move();
}

void NodeCoordinator::gather(const NodeArrival& arrival) {
  // A node that leaves waits for the others a short time, to tell them.
  Waiting waiting(arrival.leaving.empty() ? patience_.to_meet : std::min(patience_.to_meet, kTimeToTell));
  for (std::vector<int> missing = roster_.missing(); !missing.empty(); missing = roster_.missing()) {
    if (waiting.is_over() && !arrival.leaving.empty()) break;
    if (waiting.is_over())
      throw RendezvousError(
          "node 0: {} of {} did not arrive at {} within {} s: was lockrun started there, with the same --master-addr "
          "and "
          "--master-port?",
          list_nodes(missing), own_.nodes, store_.text(), waiting.timeout_s());
    if (waiting.report_is_due()) {
      fmt::print(
          stderr, "lockrun: node 0 waits at {} for {} {}{}\n", store_.text(), list_nodes(missing), waiting.progress(),
          is_loopback(store_.host) ? "; lockruns on other machines cannot reach that address, see --master-addr" : "");
      send_to_all({.kind = NodeMessage::Kind::kWaiting, .why = list_nodes(missing) + " " + waiting.progress()});
    }
    std::vector<pollfd> polled = {{listener_.get(), POLLIN, 0}};
    add_descriptors(polled);
    ::poll(polled.data(), polled.size(), kLookMs);
    if (arrival.leaving.empty()) arrival.look();
    accept_all();
    admit_all();
    remove_closed_agents();
  }
  if (!arrival.leaving.empty()) throw RendezvousError("node 0: {}", arrival.leaving);
}

void NodeCoordinator::accept_all() {
  while (Fd fd{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)}) {
    const auto is_unauthenticated = [](const Connection& agent) { return agent.node < 0; };
    if (static_cast<std::size_t>(std::count_if(agents_.begin(), agents_.end(), is_unauthenticated)) >=
        kMaxUnauthenticated)
      agents_.erase(std::find_if(agents_.begin(), agents_.end(), is_unauthenticated));
    agents_.push_back({NodeChannel(std::move(fd), NodeChannel::Side::kCoordinator, token_)});
  }
}

void NodeCoordinator::admit_all() {
  static int refusals = 0;
  for (Connection& agent : agents_) {
    const std::string peer = agent.channel.peer();
    agent.channel.move();
    if (agent.channel.state() == NodeChannel::State::kRefused && ++refusals <= kReportedRefusals)
      fmt::print(stderr, "lockrun: refused {}: it {}\n", peer, refusal_reason(token_));
    while (auto message = agent.channel.next())
      if (message->kind == NodeMessage::Kind::kJoin && message->nodes.size() == 1 && agent.node < 0)
        admit(agent, *message);
  }
}

void NodeCoordinator::admit(Connection& agent, const NodeMessage& joining) {
  const NodeFacts& facts = joining.nodes[0];
  if (!joining.why.empty()) throw RendezvousError("{}: {}", where(facts), joining.why);
  const std::string problem = facts.ranks < 1 ? "it has no ranks" : roster_.admit(facts);
  if (problem.empty()) {
    agent.node = facts.node;
    attempt_ = std::max(attempt_, joining.attempt);
    return;
  }
  fmt::print(stderr, "lockrun: refused {}: {}\n", agent.channel.peer(), problem);
  agent.channel.send({.kind = NodeMessage::Kind::kRefusal, .why = problem});
}

// Before the start a node that has left may join again.
void NodeCoordinator::remove_closed_agents() {
  agents_.remove_if([this](const Connection& agent) {
    const auto state = agent.channel.state();
    const bool is_slow =
        state == NodeChannel::State::kShaking && Clock::now() >= agent.channel.since() + kHandshakeTime;
    if (!is_slow && (state == NodeChannel::State::kOpen || state == NodeChannel::State::kShaking)) return false;
    if (agent.node >= 0) {
      fmt::print(stderr, "lockrun: node {} left before the start\n", agent.node);
      roster_.forget(agent.node);
    }
    return true;
  });
}

void NodeCoordinator::send_to_all(const NodeMessage& message) {
  for (Connection& agent : agents_)
    if (agent.node >= 0) agent.channel.send(message);
}

void NodeCoordinator::add_descriptors(std::vector<pollfd>& polled) const {
  for (const Connection& agent : agents_)
    if (const pollfd entry = agent.channel.to_poll(); entry.fd >= 0) polled.push_back(entry);
}

void NodeCoordinator::move() {
  for (Connection& agent : agents_) {
    hear(agent);
    if (agent.heartbeat && !decision_) await_report_of(agent);
  }
  decide();
}

void NodeCoordinator::hear(Connection& agent) {
  agent.channel.move();
  while (auto message = agent.channel.next()) {
    agent.has_answered = in_doubt_;
    if (agent.heartbeat) agent.heartbeat->note_heartbeat();
    if (message->kind == NodeMessage::Kind::kHeartbeatRequest)
      agent.channel.send({.kind = NodeMessage::Kind::kHeartbeat});
    if (message->kind != NodeMessage::Kind::kReport) continue;
    message->report.node = agent.node;
    message->report.when = Clock::now();
    enter(reports_, std::move(message->report));
  }
  if (agent.channel.state() != NodeChannel::State::kOpen) enter(reports_, loss_of(facts_of(agent.node), Clock::now()));
}

// This node's ranks have finished and the agent's have not, or its lockrun is gone and cannot report it.
void NodeCoordinator::await_report_of(Connection& agent) {
  const auto is_its = [&](const NodeReport& report) { return report.node == agent.node; };
  if (std::any_of(reports_.begin(), reports_.end(), is_its)) return agent.heartbeat.reset();
  const auto now = Clock::now();
  if (agent.heartbeat->look(now)) agent.channel.send({.kind = NodeMessage::Kind::kHeartbeatRequest});
  if (agent.heartbeat->is_missing()) enter(reports_, stall_of(facts_of(agent.node), patience_.without_heartbeat, now));
}

void NodeCoordinator::report(NodeReport report) {
  report.node = own_.node;
  report.when = Clock::now();
  if (report.kind == NodeReport::Kind::kFinished)
    for (Connection& agent : agents_) agent.heartbeat.emplace(patience_.without_heartbeat, report.when);
  enter(reports_, std::move(report));
  decide();
}

// Ranks of some node have lost a peer: requests a heartbeat from each node. A connection that does not acknowledge it
// ends; a lockrun that acknowledges but does not answer is stopped.
void NodeCoordinator::doubt_all() {
  for (Connection& agent : agents_) agent.channel.doubt();
  send_to_all({.kind = NodeMessage::Kind::kHeartbeatRequest});
  in_doubt_ = true;
}

// The node that has neither reported nor answered since the doubt began: the state of its ranks is unknown here.
const NodeCoordinator::Connection* NodeCoordinator::silent_agent() const {
  const auto is_silent = [this](const Connection& agent) {
    return !agent.has_answered && std::none_of(reports_.begin(), reports_.end(),
                                               [&](const NodeReport& report) { return report.node == agent.node; });
  };
  const auto found = std::find_if(agents_.begin(), agents_.end(), is_silent);
  return found == agents_.end() ? nullptr : &*found;
}

void NodeCoordinator::decide() {
  const auto is_bad = [](const NodeReport& report) { return report.kind != NodeReport::Kind::kFinished; };
  if (!in_doubt_ && std::any_of(reports_.begin(), reports_.end(), is_bad)) doubt_all();
  if (!decision_ && (decision_ = decide_for_nodes(reports_, nodes_.size(), Clock::now(), kWaitForCause))) {
    if (const Connection* silent = decision_->kind == NodeReport::Kind::kConsequence ? silent_agent() : nullptr)
      decision_ = stall_of(facts_of(silent->node), kWaitForCause, Clock::now());
    if (judge_) judge_(*decision_);
    send_to_all({.kind = NodeMessage::Kind::kEnd, .report = *decision_});
    leave_by_ = Clock::now() + kWaitForNodes;
  }
}

bool NodeCoordinator::may_leave() const {
  const auto is_gone = [](const Connection& agent) { return agent.channel.state() != NodeChannel::State::kOpen; };
  return decision_ && (Clock::now() >= leave_by_ || std::all_of(agents_.begin(), agents_.end(), is_gone));
}

}  // namespace lockstep::launch

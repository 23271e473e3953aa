#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>

#include "lockstep/core/error.h"
#include "src/comm/socket.h"
#include "src/launch/node_link.h"
#include "src/launch/waiting.h"

namespace lockstep::launch {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kMaxStrangers = 256;  // the oldest goes when one more comes
constexpr int kReportedRefusals = 20;
// Once in doubt, a connection to a node that is gone ends within 3 s: the cause comes soon after the consequence.
constexpr seconds kWaitForCause(4);
// Beyond the verdict: other nodes give their ranks up to 5 s to save and leave, and use the store meanwhile.
constexpr seconds kWaitForNodes(10);

}  // namespace

NodeHost::NodeHost(NodeFacts own, Fd listener, std::string token, const NodePatience& patience)
    : NodeLink(std::move(own), patience), listener_(std::move(listener)), token_(std::move(token)), roster_(own_) {
  store_ = local_endpoint(listener_.get());
  gather();
  nodes_ = roster_.nodes();
  guests_.remove_if([](const Guest& guest) { return guest.node < 0; });
  send_to_all({.kind = NodeMessage::Kind::kStart, .nodes = nodes_});
}

void NodeHost::gather() {
  Waiting waiting(patience_.to_meet);
  for (std::vector<int> missing = roster_.missing(); !missing.empty(); missing = roster_.missing()) {
    if (waiting.is_over()) {
      const std::string why =
          fmt::format("{} of {} did not come to {} within {} s: was lockrun started there, with the same --master-addr and --master-port?",
                      list_nodes(missing), own_.nodes, store_.text(), waiting.timeout_s());
      send_to_all({.kind = NodeMessage::Kind::kRefusal, .why = why});
      throw RendezvousError("node 0: {}", why);
    }
    if (waiting.word_is_due()) {
      fmt::print(stderr, "lockrun: node 0 waits at {} for {} {}{}\n", store_.text(), list_nodes(missing), waiting.progress(),
                 is_loopback(store_.host) ? "; lockruns on other machines cannot reach that address, see --master-addr" : "");
      send_to_all({.kind = NodeMessage::Kind::kWaiting, .why = list_nodes(missing) + " " + waiting.progress()});
    }
    std::vector<pollfd> polled = {{listener_.get(), POLLIN, 0}};
    add_descriptors(polled);
    ::poll(polled.data(), polled.size(), kLookMs);
    accept_all();
    admit_all();
    dismiss_the_closed();
  }
}

void NodeHost::accept_all() {
  while (Fd fd{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)}) {
    const auto is_stranger = [](const Guest& guest) { return guest.node < 0; };
    if (static_cast<std::size_t>(std::count_if(guests_.begin(), guests_.end(), is_stranger)) >= kMaxStrangers)
      guests_.erase(std::find_if(guests_.begin(), guests_.end(), is_stranger));
    guests_.push_back({NodeChannel(std::move(fd), NodeChannel::Side::kHost, token_)});
  }
}

void NodeHost::admit_all() {
  static int refusals = 0;
  for (Guest& guest : guests_) {
    const std::string peer = guest.channel.peer();
    guest.channel.move();
    if (guest.channel.state() == NodeChannel::State::kRefused && ++refusals <= kReportedRefusals)
      fmt::print(stderr, "lockrun: refused {}: it does not know the job's token\n", peer);
    while (auto message = guest.channel.next())
      if (message->kind == NodeMessage::Kind::kJoin && message->nodes.size() == 1 && guest.node < 0) admit(guest, message->nodes[0]);
  }
}

void NodeHost::admit(Guest& guest, const NodeFacts& facts) {
  const std::string problem = facts.ranks < 1 ? "it has no ranks" : roster_.admit(facts);
  if (problem.empty()) {
    guest.node = facts.node;
    return;
  }
  fmt::print(stderr, "lockrun: refused {}: {}\n", guest.channel.peer(), problem);
  guest.channel.send({.kind = NodeMessage::Kind::kRefusal, .why = problem});
}

// Before the start: whoever has left may come again.
void NodeHost::dismiss_the_closed() {
  guests_.remove_if([this](const Guest& guest) {
    const auto state = guest.channel.state();
    const bool is_slow = state == NodeChannel::State::kShaking && Clock::now() >= guest.channel.since() + kHandshakeTime;
    if (!is_slow && (state == NodeChannel::State::kOpen || state == NodeChannel::State::kShaking)) return false;
    if (guest.node >= 0) {
      fmt::print(stderr, "lockrun: node {} left before the start\n", guest.node);
      roster_.forget(guest.node);
    }
    return true;
  });
}

void NodeHost::send_to_all(const NodeMessage& message) {
  for (Guest& guest : guests_)
    if (guest.node >= 0) guest.channel.send(message);
}

void NodeHost::add_descriptors(std::vector<pollfd>& polled) const {
  for (const Guest& guest : guests_)
    if (const pollfd entry = guest.channel.to_poll(); entry.fd >= 0) polled.push_back(entry);
}

void NodeHost::move() {
  for (Guest& guest : guests_) {
    hear(guest);
    if (guest.sign_of_life && !verdict_) await_report_of(guest);
  }
  decide();
}

void NodeHost::hear(Guest& guest) {
  guest.channel.move();
  while (auto message = guest.channel.next()) {
    if (guest.sign_of_life) guest.sign_of_life->heard();
    if (message->kind == NodeMessage::Kind::kAsk) guest.channel.send({.kind = NodeMessage::Kind::kHere});
    if (message->kind != NodeMessage::Kind::kReport) continue;
    message->report.node = guest.node;
    message->report.when = Clock::now();
    enter(reports_, std::move(message->report));
  }
  if (guest.channel.state() != NodeChannel::State::kOpen) enter(reports_, loss_of(facts_of(guest.node), Clock::now()));
}

// This node's ranks have finished, and those of the guest have not, or nobody is left there who could say so.
void NodeHost::await_report_of(Guest& guest) {
  const auto is_its = [&](const NodeReport& report) { return report.node == guest.node; };
  if (std::any_of(reports_.begin(), reports_.end(), is_its)) return guest.sign_of_life.reset();
  const auto now = Clock::now();
  if (guest.sign_of_life->look(now)) guest.channel.send({.kind = NodeMessage::Kind::kAsk});
  if (guest.sign_of_life->is_missing()) enter(reports_, stall_of(facts_of(guest.node), patience_.without_sign_of_life, now));
}

void NodeHost::report(NodeReport report) {
  report.node = own_.node;
  report.when = Clock::now();
  if (report.kind == NodeReport::Kind::kFinished)
    for (Guest& guest : guests_) guest.sign_of_life.emplace(patience_.without_sign_of_life, report.when);
  enter(reports_, std::move(report));
  decide();
}

// Somebody's ranks have lost a peer: asks the nodes whether they are there. They need not answer, only take it in.
void NodeHost::doubt_all() {
  for (Guest& guest : guests_) guest.channel.doubt();
  send_to_all({.kind = NodeMessage::Kind::kWaiting, .why = "a cause"});
  in_doubt_ = true;
}

void NodeHost::decide() {
  const auto is_bad = [](const NodeReport& report) { return report.kind != NodeReport::Kind::kFinished; };
  if (!in_doubt_ && std::any_of(reports_.begin(), reports_.end(), is_bad)) doubt_all();
  if (!verdict_ && (verdict_ = judge_nodes(reports_, nodes_.size(), Clock::now(), kWaitForCause))) {
    send_to_all({.kind = NodeMessage::Kind::kEnd, .report = *verdict_});
    leave_by_ = Clock::now() + kWaitForNodes;
  }
}

bool NodeHost::may_leave() const {
  const auto is_gone = [](const Guest& guest) { return guest.channel.state() != NodeChannel::State::kOpen; };
  return verdict_ && (Clock::now() >= leave_by_ || std::all_of(guests_.begin(), guests_.end(), is_gone));
}

}  // namespace lockstep::launch

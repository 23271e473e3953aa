#include "src/launch/nodes/node_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "lockstep/core/error.h"
#include "src/comm/rendezvous/environment_reader.h"

namespace lockstep::launch {

namespace {

constexpr std::size_t kNamesInAMessage = 16;

}  // namespace

std::string where(const NodeFacts& facts) { return fmt::format("node {} on host {}", facts.node, facts.host); }

std::string list_nodes(const std::vector<int>& nodes) {
  std::string text = nodes.size() == 1 ? "node " : "nodes ";
  for (std::size_t i = 0; i < std::min(nodes.size(), kNamesInAMessage); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(nodes[i]);
  if (nodes.size() > kNamesInAMessage) text += fmt::format(" and {} more", nodes.size() - kNamesInAMessage);
  return text;
}

Roster::Roster(const NodeFacts& zero) { present_[zero.node] = zero; }

std::string Roster::admit(const NodeFacts& facts) {
  const NodeFacts& zero = present_.begin()->second;
  if (facts.nodes != zero.nodes)
    return fmt::format("{} was started with --nnodes {}, {} with --nnodes {}: the number must be the same everywhere",
                       where(facts), facts.nodes, where(zero), zero.nodes);
  if (facts.max_restarts != zero.max_restarts)
    return fmt::format("{} was started with --max-restarts {}, {} with --max-restarts {}: all restart together",
                       where(facts), facts.max_restarts, where(zero), zero.max_restarts);
  if (facts.node < 0 || facts.node >= zero.nodes)
    return fmt::format("node {} does not exist among {} nodes: --node-rank counts from 0", facts.node, zero.nodes);
  const auto standing = present_.find(facts.node);
  if (standing == present_.end()) {
    long ranks = facts.ranks;
    for (const auto& [node, present] : present_) ranks += present.ranks;
    if (ranks > kMaxRanks)
      return fmt::format("{} with {} ranks makes {} of them: {} are the most", where(facts), facts.ranks, ranks,
                         kMaxRanks);
    present_.emplace(facts.node, facts);
    return "";
  }
  return fmt::format(
      "--node-rank {} is taken: lockrun {} on host {} joined before lockrun {} on host {}; each node needs its "
      "own",
      facts.node, standing->second.pid, standing->second.host, facts.pid, facts.host);
}

std::vector<int> Roster::missing() const {
  std::vector<int> missing;
  for (int node = 0; node < present_.begin()->second.nodes; ++node)
    if (present_.count(node) == 0) missing.push_back(node);
  return missing;
}

std::vector<NodeFacts> Roster::nodes() const {
  std::vector<NodeFacts> nodes;
  for (const auto& [number, facts] : present_) nodes.push_back(facts);
  return nodes;
}

NodePlace place_of(const std::vector<NodeFacts>& nodes, int node) {
  NodePlace place;
  for (const NodeFacts& facts : nodes) {
    if (facts.node < node) place.first_rank += facts.ranks;
    place.world_size += facts.ranks;
  }
  return place;
}

void enter(std::vector<NodeReport>& reports, NodeReport report) {
  const auto standing =
      std::find_if(reports.begin(), reports.end(), [&](const NodeReport& other) { return other.node == report.node; });
  if (standing == reports.end())
    reports.push_back(std::move(report));
  else if (standing->kind == NodeReport::Kind::kFinished && report.kind == NodeReport::Kind::kInterrupted)
    *standing = std::move(report);
}

std::optional<NodeReport> decide_for_nodes(const std::vector<NodeReport>& reports, std::size_t nodes,
                                           Clock::time_point now, std::chrono::milliseconds wait_for_cause) {
  const NodeReport* consequence = nullptr;
  for (const NodeReport& report : reports) {
    if (report.kind == NodeReport::Kind::kConsequence && consequence == nullptr) consequence = &report;
    if (report.kind != NodeReport::Kind::kConsequence && report.kind != NodeReport::Kind::kFinished) return report;
  }
  const bool all_reported = reports.size() >= nodes;
  if (consequence != nullptr && (all_reported || now >= consequence->when + wait_for_cause)) return *consequence;
  if (consequence != nullptr || !all_reported) return std::nullopt;
  const auto is_preempted = [](const NodeReport& report) { return report.exit_code != 0; };
  const auto preempted = std::find_if(reports.begin(), reports.end(), is_preempted);
  return preempted == reports.end() ? reports.front() : *preempted;
}

namespace {

NodeReport gone(const NodeFacts& facts, std::string cause) {
  NodeReport report;
  report.kind = NodeReport::Kind::kLost;
  report.node = facts.node;
  report.exit_code = kPeerLostExitCode;
  report.signal = SIGTERM;
  report.cause = std::move(cause);
  report.failure = FirstFailure{.node = facts.node, .how = "was lost", .is_from_outside = true};
  return report;
}

}  // namespace

NodeReport loss_of(const NodeFacts& facts, Clock::time_point now) {
  NodeReport report = gone(facts, fmt::format("lockrun: {} is gone: the connection to its lockrun (pid {}) ended "
                                              "without a report; it was killed, or its {}\n",
                                              where(facts), facts.pid, "machine or the network between is down"));
  report.when = now;
  return report;
}

NodeReport silence_of(const NodeFacts& facts, std::chrono::seconds silent) {
  return gone(
      facts,
      fmt::format("lockrun: {} does not answer: its lockrun (pid {}) has decided nothing for {} s; is it stopped?\n",
                  where(facts), facts.pid, silent.count()));
}

NodeReport stall_of(const NodeFacts& facts, std::chrono::milliseconds silent, Clock::time_point now) {
  NodeReport report = gone(facts, fmt::format("lockrun: {} does not answer: its lockrun (pid {}) has sent no heartbeat "
                                              "for {} s, and the state of its ranks is not known here; is it "
                                              "stopped?\n",
                                              where(facts), facts.pid, static_cast<double>(silent.count()) / 1000));
  report.when = now;
  return report;
}

std::string describe_decision(const NodeReport& decision, const NodeFacts& blamed) {
  const bool ranks_failed =
      decision.kind == NodeReport::Kind::kFailed || decision.kind == NodeReport::Kind::kConsequence;
  if (!ranks_failed) return decision.cause;
  return decision.cause +
         fmt::format("lockrun: its last lines are in the output of the lockrun of {}\n", where(blamed));
}

}  // namespace lockstep::launch

#include "src/launch/nodes/node_link.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/net/host_names.h"
#include "src/comm/net/interface.h"
#include "src/comm/net/token.h"
#include "src/comm/rendezvous/store_address.h"
#include "src/core/process/first_process.h"
#include "src/launch/supervise/waiting.h"

namespace lockstep::launch {

namespace {

using std::chrono::milliseconds;

NodeFacts own_facts(const LaunchSpec& spec, NodePorts& ports) {
  if (ports.program == 0) ports.program = free_port();
  return {spec.node_rank, spec.nodes, spec.ranks, host_name(), ::getpid(), ports.program, spec.max_restarts};
}

std::chrono::seconds seconds_of(const char* variable, long otherwise) {
  return std::chrono::seconds(env::integer(variable, 1, 30 * 24 * 3600).value_or(otherwise));
}

void check_token(const LaunchSpec& spec, const std::string& token, bool insecure) {
  if (!token.empty() || insecure || is_loopback(spec.master_host)) return;
  throw InvalidArgument(
      "--nnodes {}: nodes on several machines need a secret that they share, or anyone on the network could join the "
      "job: {}",
      spec.nodes, kHowToMakeAToken);
}

bool means_loopback(const std::string& host) {
  return is_loopback(host) || host == "ip6-localhost" || host == "ip6-loopback";
}

// The addresses for --master-addr. A machine's own name may resolve to loopback on it (Debian's /etc/hosts maps it to
// 127.0.1.1, a training operator maps it to localhost in the pod itself). Such a name is meant for the others: then the
// addresses are LOCKSTEP_INTERFACE's or all interfaces, where only peers that know the token are served.
std::vector<std::string> addresses_to_listen_on(const LaunchSpec& spec, bool has_token, Deadline deadline,
                                                std::string& why) {
  const auto resolved = resolve_host(spec.master_host, deadline, why);
  const bool leads_to_loopback = !resolved.empty() && std::all_of(resolved.begin(), resolved.end(), is_loopback);
  const bool is_for_others =
      env::text("KUBERNETES_SERVICE_HOST") || (leads_to_loopback && !means_loopback(spec.master_host));
  if (!has_token || !is_for_others) return resolved;
  const auto chosen = env::text(env::kInterface);
  return store_addresses(spec.master_host, resolved, addresses_of_this_machine(), true,
                         chosen ? choose_address(*chosen, interface_addresses(), "") : "");
}

// The name may not resolve yet.
Fd listen_for_nodes(const LaunchSpec& spec, bool has_token, milliseconds timeout) {
  Waiting waiting(timeout);
  for (std::string why;;) {
    const auto addresses = addresses_to_listen_on(spec, has_token, waiting.deadline(), why);
    if (!addresses.empty()) {
      try {
        return listen_on_one_of(addresses, spec.master_port);
      } catch (const RendezvousError& error) {
        throw RendezvousError("node 0, for --master-addr {} and --master-port {}: {}", spec.master_host,
                              spec.master_port, error.what());
      }
    }
    if (waiting.is_over())
      throw RendezvousError("node 0: --master-addr {} did not resolve within {} s ({})", spec.master_host,
                            waiting.timeout_s(), why);
    if (waiting.report_is_due())
      fmt::print(stderr, "lockrun: node 0 waits until --master-addr {} resolves: {} {}\n", spec.master_host, why,
                 waiting.progress());
    std::this_thread::sleep_for(kPauseBetweenTries);
  }
}

void print_nodes(const NodeLink& link) {
  std::string list;
  for (const NodeFacts& facts : link.nodes())
    list += fmt::format("{}{} ({})", list.empty() ? "" : ", ", facts.host, facts.ranks);
  fmt::print(stderr, "lockrun: {} ranks on {} nodes: {}\n", place_of(link.nodes(), 0).world_size, link.nodes().size(),
             list);
}

}  // namespace

void NodeLink::part() {
  while (!may_leave()) {
    std::vector<pollfd> polled;
    add_descriptors(polled);
    ::poll(polled.data(), polled.size(), kLookMs);
    move();
  }
}

std::unique_ptr<NodeLink> join_nodes(const LaunchSpec& spec, const std::string& token, const NodeArrival& arrival,
                                     NodePorts& ports) {
  if (spec.node_rank < 0 || spec.node_rank >= spec.nodes || spec.master_host.empty())
    throw InvalidArgument(
        "launch: node {} of {} at '{}': expected a node below the number of nodes, and the host of node 0",
        spec.node_rank, spec.nodes, spec.master_host);
  end_on_signals_as_first_process();  // there are no ranks to end yet
  warn_of_open_token_file();
  check_token(spec, token, env::integer(env::kInsecure, 0, 1).value_or(0) == 1);
  const NodePatience patience{seconds_of(env::kStoreTimeout, 60), seconds_of(env::kStallTimeout, 30),
                              spec.max_restarts > 0};
  const NodeFacts own = own_facts(spec, ports);
  if (spec.node_rank != 0)
    return std::make_unique<NodeAgent>(own, Endpoint{spec.master_host, spec.master_port}, token, patience, arrival);
  if (!ports.listener) ports.listener = listen_for_nodes(spec, !token.empty(), patience.to_meet);
  auto link = std::make_unique<NodeCoordinator>(own, copy_of(ports.listener), token, patience, arrival);
  if (arrival.attempt == 0) print_nodes(*link);
  return link;
}

}  // namespace lockstep::launch

#include "src/launch/node_join.h"

#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <thread>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/host_names.h"
#include "src/comm/token_file.h"
#include "src/launch/waiting.h"

namespace lockstep::launch {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPause(200);

NodeFacts own_facts(const LaunchSpec& spec) { return {spec.node_rank, spec.nodes, spec.ranks, host_name(), ::getpid()}; }

void check_token(const LaunchSpec& spec, const std::string& token, bool insecure) {
  if (!token.empty() || insecure || is_loopback(spec.master_host)) return;
  throw InvalidArgument(
      "--nnodes {}: nodes on several machines need a secret that they share, or anyone on the network could join the job: {}", spec.nodes,
      kHowToMakeAToken);
}

// Debian's /etc/hosts gives a machine's own name 127.0.1.1.
void warn_of_loopback(const LaunchSpec& spec, const std::string& address) {
  if (is_loopback(address) && !is_loopback(spec.master_host))
    fmt::print(stderr, "lockrun: --master-addr {} is {} here, where other machines cannot reach it: name node 0's address in numbers\n",
               spec.master_host, address);
}

// The one interface that --master-addr names; a name may not exist yet.
Fd listen_for_nodes(const LaunchSpec& spec, milliseconds timeout) {
  Waiting waiting(timeout);
  for (std::string why;;) {
    const auto addresses = resolve_host(spec.master_host, waiting.deadline(), why);
    if (!addresses.empty()) {
      try {
        Fd listener = listen_on_one_of(addresses, spec.master_port);
        warn_of_loopback(spec, local_endpoint(listener.get()).host);
        return listener;
      } catch (const RendezvousError& error) {
        throw RendezvousError("node 0, for --master-addr {} and --master-port {}: {}", spec.master_host, spec.master_port, error.what());
      }
    }
    if (waiting.is_over())
      throw RendezvousError("node 0: --master-addr {} did not resolve within {} s ({})", spec.master_host, waiting.timeout_s(), why);
    if (waiting.word_is_due())
      fmt::print(stderr, "lockrun: node 0 waits until --master-addr {} resolves: {} {}\n", spec.master_host, why, waiting.progress());
    std::this_thread::sleep_for(kPause);
  }
}

// While there are no ranks to end, a signal ends this process as it would any other. A container's first process has to ask for that:
// the kernel keeps from it what it has no handler for.
class EndedBySignals {
 public:
  EndedBySignals() {
    if (::getpid() != 1) return;
    struct sigaction action {};
    action.sa_handler = [](int signal) { ::_exit(128 + signal); };
    for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &action, &before_[i]);
  }
  ~EndedBySignals() {
    if (::getpid() != 1) return;
    for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  }
  EndedBySignals(const EndedBySignals&) = delete;
  EndedBySignals& operator=(const EndedBySignals&) = delete;

 private:
  static constexpr std::array<int, 3> kSignals = {SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, kSignals.size()> before_{};
};

void tell_who_has_come(const NodeLink& link) {
  std::string list;
  for (const NodeFacts& facts : link.nodes()) list += fmt::format("{}{} ({})", list.empty() ? "" : ", ", facts.host, facts.ranks);
  fmt::print(stderr, "lockrun: {} ranks on {} nodes: {}\n", place_of(link.nodes(), 0).world_size, link.nodes().size(), list);
}

}  // namespace

std::unique_ptr<NodeLink> join_nodes(const LaunchSpec& spec, const std::string& token) {
  if (spec.node_rank < 0 || spec.node_rank >= spec.nodes || spec.master_host.empty())
    throw InvalidArgument("launch: node {} of {} at '{}': a node below the number of nodes and the host of node 0 are needed",
                          spec.node_rank, spec.nodes, spec.master_host);
  const EndedBySignals until_all_have_come;
  warn_of_open_token_file();
  check_token(spec, token, env::integer(env::kInsecure, 0, 1).value_or(0) == 1);
  const milliseconds timeout = std::chrono::seconds(env::integer(env::kStoreTimeout, 1, 30 * 24 * 3600).value_or(60));
  if (spec.node_rank != 0)
    return std::make_unique<NodeGuest>(own_facts(spec), Endpoint{spec.master_host, spec.master_port}, token, timeout);
  auto link = std::make_unique<NodeHost>(own_facts(spec), listen_for_nodes(spec, timeout), token, timeout);
  tell_who_has_come(*link);
  return link;
}

}  // namespace lockstep::launch

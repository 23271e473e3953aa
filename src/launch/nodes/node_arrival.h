// How the nodes of a job meet, once for each attempt.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "lockstep/launch/launch.h"
#include "src/core/process/fd.h"

namespace lockstep::launch {

class NodeLink;

// How long one lockrun waits for another.
struct NodePatience {
  std::chrono::milliseconds to_meet;
  std::chrono::milliseconds without_heartbeat;
  // The job may restart: an attempt that still runs at node 0's port is waited for.
  bool is_restartable = false;
};

// A node that arrives for an attempt.
struct NodeArrival {
  int attempt = 0;      // its number, as this node counts
  std::string leaving;  // "": the node takes part; else it tells the others why it does not, and they end, too
  // Called every 100 to 200 ms while this node waits; may throw.
  std::function<void()> look = [] {};
};

// A node's ports, the same in all attempts of a job.
struct NodePorts {
  Fd listener;                // node 0: for the others, and for the store
  std::uint16_t program = 0;  // node 0: the ranks' MASTER_PORT
};

// Joins the nodes of the spec and waits until all have joined, before there are any ranks of the attempt. Before the
// first one a signal ends this process as it would any other, as there is nothing to clean up yet; later `look` reads
// signals. `token` may be empty: then the job stays on loopback,
// unless LOCKSTEP_INSECURE=1. `ports` are set by the first call. Throws InvalidArgument, RendezvousError.
std::unique_ptr<NodeLink> join_nodes(const LaunchSpec& spec, const std::string& token, const NodeArrival& arrival,
                                     NodePorts& ports);

}  // namespace lockstep::launch

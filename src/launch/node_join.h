// Bringing the nodes of a job together, before there is any rank.
#pragma once

#include <memory>
#include <string>

#include "lockstep/launch/launch.h"
#include "src/launch/node_link.h"

namespace lockstep::launch {

// Joins as the spec says and waits until all nodes have. A signal ends this process as it would any other: there is nothing to clear up
// yet. `token` may be empty: then the job stays on loopback, unless LOCKSTEP_INSECURE=1. Throws InvalidArgument, RendezvousError.
std::unique_ptr<NodeLink> join_nodes(const LaunchSpec& spec, const std::string& token);

}  // namespace lockstep::launch

// How the ranks of a group find out which of them share memory.
//
// That the handing-over of a memfd works is what "the same machine" means: host names agree across containers that
// share nothing, and differ within one that shares all. Every rank listens on an abstract socket and joins the lowest
// rank that it reaches; that one hands out the node's memory. A node whose hand-over fails falls apart into nodes of
// one rank.
#pragma once

#include <memory>
#include <string>

#include "lockstep/comm/backend_context.h"
#include "src/comm/host/machine/node_layout.h"
#include "src/comm/host/machine/shared_memory_provider.h"

namespace lockstep::host {

struct NodeRendezvous {
  NodeLayout layout;                               // the same on all ranks
  std::unique_ptr<SharedMemoryProvider> provider;  // of this rank's node; null: no rank shares memory with it
  std::shared_ptr<SharedSegment> control;  // ControlLayout::bytes(size of the node), the provider's first segment
  std::string refusal;  // "" if all share memory, else which rank could not, and why; the same on all ranks
};

// Collective: all ranks come to the same layout, through the store. Blocks for the context's store_timeout, and 2 s
// more to hear which rank was missing: RendezvousError then names those ranks, on all that came.
NodeRendezvous find_nodes(const BackendContext& context);

}  // namespace lockstep::host

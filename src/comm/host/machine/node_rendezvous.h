// Finds out which ranks of a group share memory.
//
// Two ranks are on the same machine if passing a memfd between them works. (Host names are equal in containers that
// share nothing, and may differ in containers that share memory.) Every rank listens on an abstract socket and joins
// the lowest rank that it reaches, which hands out the node's memory. If that fails, the node is split into nodes of
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
  std::unique_ptr<SharedMemoryProvider> provider;  // of this rank's node; null: no other rank shares memory with it
  std::shared_ptr<SharedSegment> control;  // ControlLayout::bytes(size of the node), the provider's first segment
  std::string refusal;  // "" if all ranks share memory, else which rank could not, and why; the same on all ranks
};

// Collective: all ranks get the same layout, through the store. Blocks for at most the context's store_timeout and 2 s.
// If ranks are missing, all others throw RendezvousError that names them.
NodeRendezvous find_nodes(const BackendContext& context);

}  // namespace lockstep::host

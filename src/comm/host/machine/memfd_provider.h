// Shared memory for processes: one of them, the leader, makes memfds and passes them through sockets.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/comm/host/machine/shared_memory_provider.h"
#include "src/comm/net/socket.h"

namespace lockstep::host {

// The ranks of a node, by rank in the group; the first one is the leader.
struct NodeMembers {
  std::vector<int> ranks;
  int local_rank = 0;
  std::string token;                          // which all must prove to know
  std::function<void()> check_presence = {};  // throws if a rank of the group is lost

  int rank() const { return ranks[static_cast<std::size_t>(local_rank)]; }
  int leader() const { return ranks.front(); }
};

// Collective. The leader passes its listener, the others their connection to it. Throws Error that says which rank
// failed, and how.
std::unique_ptr<SharedMemoryProvider> make_memfd_provider(Fd socket, const NodeMembers& members, Deadline deadline);

}  // namespace lockstep::host

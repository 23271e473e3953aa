// Shared memory for processes: one of them, the leader, makes memfds and hands them over through sockets.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/comm/host/machine/shared_memory_provider.h"
#include "src/comm/net/socket.h"

namespace lockstep::host {

// The ranks of a node, by their numbers in the group; the first one leads.
struct NodeMembers {
  std::vector<int> ranks;
  int local_rank = 0;
  std::string token;                          // that all must prove to know
  std::function<void()> check_presence = {};  // throws when one of the group is lost

  int rank() const { return ranks[static_cast<std::size_t>(local_rank)]; }
  int leader() const { return ranks.front(); }
};

// Collective. The leader gives its listener, the others their connection to it. Throws Error that says who failed, and
// how.
std::unique_ptr<SharedMemoryProvider> make_memfd_provider(Fd socket, const NodeMembers& members, Deadline deadline);

}  // namespace lockstep::host

// The processes of a parameter server's job as ranks: worker:0, worker:1, ..., then ps:0, ps:1, ... Pure.
#pragma once

#include <algorithm>
#include <string>

namespace lockstep::launch {

struct TaskCounts {
  int servers = 0, workers = 0;  // both 0: there are no parameter servers

  bool any() const { return servers > 0; }
  bool is_server(int rank) const { return any() && rank >= workers; }
  int index_of(int rank) const { return is_server(rank) ? rank - workers : rank; }
  // The number of servers among `ranks` ranks from `first` on. Servers are the last ranks.
  int servers_among(int first, int ranks) const { return any() ? std::clamp(first + ranks - workers, 0, ranks) : 0; }
  // "worker:3", "ps:0"; "" without parameter servers.
  std::string name_of(int rank) const {
    return any() ? (is_server(rank) ? "ps:" : "worker:") + std::to_string(index_of(rank)) : "";
  }
};

}  // namespace lockstep::launch

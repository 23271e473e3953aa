// The environment of a rank. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/launch/supervise/tasks.h"

namespace lockstep::launch {

struct JobFacts {
  int ranks = 1;       // on this node
  int world_size = 1;  // on all
  int first_rank = 0;  // of this node
  int node = 0, nodes = 1;
  TaskCounts tasks = {};
  std::string master_host;
  std::uint16_t store_port = 0;       // of this launcher's store
  std::uint16_t master_port = 0;      // left to the program: for torch.distributed, say, whose rank 0 listens there
  std::string fresh_token;            // the job's own; empty when the user has set one, which then stays
  std::string flight_dir;             // empty: as the user has set it
  int threads = 1;                    // for each rank
  std::optional<int> terminal_width;  // of the launcher's stdout; absent: not a terminal
  bool has_terminals = false;         // each rank has one as its stdout
};

// Value to set, or nullopt to remove.
using EnvironmentChange = std::pair<std::string, std::optional<std::string>>;

std::vector<EnvironmentChange> rank_environment(
    const JobFacts& job, int local_rank, const std::function<std::optional<std::string>(const char*)>& inherited);

}  // namespace lockstep::launch

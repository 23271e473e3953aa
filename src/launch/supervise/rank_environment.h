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
  int world_size = 1;  // on all nodes
  int first_rank = 0;  // on this node
  int node = 0, nodes = 1;
  TaskCounts tasks = {};
  std::string master_host;
  std::uint16_t store_port = 0;       // of this launcher's store
  std::uint16_t master_port = 0;      // for the program: torch.distributed, say, whose rank 0 listens there
  std::string fresh_token;            // the job's own; empty if the user has set one, which is then kept
  std::string flight_dir;             // empty: as the user has set it
  int threads = 1;                    // of each rank
  std::optional<int> terminal_width;  // of the launcher's stdout; nullopt: not a terminal
  bool has_terminals = false;         // each rank's stdout is a terminal
  int attempt = 0, max_restarts = 0;
  std::string attempt_id = {};  // no other attempt has it
};

// The value to set, or nullopt to remove the variable.
using EnvironmentChange = std::pair<std::string, std::optional<std::string>>;

std::vector<EnvironmentChange> rank_environment(
    const JobFacts& job, int local_rank, const std::function<std::optional<std::string>(const char*)>& inherited);

}  // namespace lockstep::launch

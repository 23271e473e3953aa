// The number of compute threads of each rank. The ranks of a machine share its cores, whichever launcher started and
// bound them.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/backend_context.h"

namespace lockstep {

// The machine and container of a rank, and the cores that it may use.
struct RankCores {
  std::string machine;
  std::vector<int> cores;
  std::string container = {};  // its control group on that machine; the ranks in it share `quota`
  int quota = 0;               // CPU time in cores; 0: unlimited
};

// Returns the number of threads by rank. Each core is divided among the ranks of its machine that may use it, and a
// rank gets at most its part of its container's quota and at least 1. All ranks of a machine get the same number, since
// the faster ones would only wait. Pure.
std::vector<int> thread_shares(const std::vector<RankCores>& ranks);

// Collective among the ranks of a group that was not made by split(), after they have registered. The process's first
// group, or one that `decides`, sets compute_threads(), unless OMP_NUM_THREADS is set. For the other groups the process
// only reports its cores.
void share_threads(const BackendContext& context, bool decides);

}  // namespace lockstep

// How many threads each rank computes with: the ranks of a machine share its cores, whichever launcher started and
// bound them.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/backend_context.h"

namespace lockstep {

// Where a rank runs, and on which of the cores there.
struct RankCores {
  std::string machine;
  std::vector<int> cores;
  std::string container = {};  // its control group on that machine, of which all ranks there share `quota`
  int quota = 0;               // cores' worth of time; 0: as much as its cores have
};

// By rank: the cores that it may use, each divided among the ranks of its machine that may use it too, and no more than
// its part of its container's quota; at least 1, and no rank of a machine has more than another, which it would only
// wait for. Pure.
std::vector<int> thread_shares(const std::vector<RankCores>& ranks);

// Collective among the ranks of a group that no other one was split into, once they have registered. The first of this
// process, or one that `decides`, sets its compute_threads(), which OMP_NUM_THREADS overrules; to the others the
// process tells its cores and no more.
void share_threads(const BackendContext& context, bool decides);

}  // namespace lockstep

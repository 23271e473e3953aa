// How many threads each rank computes with: the ranks of a machine share its cores, whatever started and bound them.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/backend.h"

namespace lockstep {

// Where a rank runs, and on which of the cores there.
struct RankCores {
  std::string machine;
  std::vector<int> cores;
};

// By rank: the cores that it may use, each divided among the ranks of its machine that may use it too; at least 1, and no rank of a machine
// has more than another, which it would only wait for. Pure.
std::vector<int> thread_shares(const std::vector<RankCores>& ranks);

// Collective among the ranks of a job, once they have registered: sets this process's compute_threads(), which OMP_NUM_THREADS overrules.
void share_threads(const BackendContext& context);

}  // namespace lockstep

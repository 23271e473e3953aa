// lockrun as a task of srun: `srun -N 2 --ntasks-per-node=1 lockrun -n 4 program` is one job of eight ranks.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/bootstrap.h"

namespace lockstep::launcher {

// The flags, and behind them those of --nnodes, --node-rank, --master-addr and --master-port that they lack and that
// srun's variables tell.
// --nnodes 1 or --standalone says that each lockrun has a job of its own. Throws InvalidArgument when a node has
// several lockruns and no flag says what they are to each other.
std::vector<std::string> with_srun_nodes(std::vector<std::string> flags, const EnvironmentLookup& lookup);

}  // namespace lockstep::launcher

// lockrun as a task of srun: `srun -N 2 --ntasks-per-node=1 lockrun -n 4 program` is one job of eight ranks.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/bootstrap.h"

namespace lockstep::launch {

// Appends the missing flags among --nnodes, --node-rank, --master-addr and --master-port whose values srun's variables
// provide. With --nnodes 1 or --standalone each lockrun has its own job. Throws InvalidArgument if a node has several
// lockruns and no flag says how they relate.
std::vector<std::string> with_srun_nodes(std::vector<std::string> flags, const EnvironmentLookup& lookup);

}  // namespace lockstep::launch

// What torchrun reads from PET_... variables. Kubeflow's Trainer tells a pod by these alone which node it is.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/bootstrap.h"

namespace lockstep::launcher {

// The flags, and behind them those that they lack and that PET_NNODES, PET_NODE_RANK, PET_NPROC_PER_NODE,
// PET_MASTER_ADDR and PET_MASTER_PORT tell. Flags come first: a job of one node by its flags (--nnodes 1, --standalone)
// takes none of the other nodes' variables. A launcher of a rank (RANK is set) leaves the variables to the launcher
// above it.
std::vector<std::string> with_torchruns_variables(std::vector<std::string> flags, const EnvironmentLookup& lookup);

}  // namespace lockstep::launcher

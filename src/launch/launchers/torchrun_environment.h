// The PET_... variables that torchrun reads. Kubeflow's Trainer uses only these to tell a pod its node number.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/bootstrap.h"

namespace lockstep::launch {

// Appends the missing flags whose values PET_NNODES, PET_NODE_RANK, PET_NPROC_PER_NODE, PET_MASTER_ADDR and
// PET_MASTER_PORT provide. Flags take precedence: a job of one node by its flags (--nnodes 1, --standalone) uses none
// of the variables for several nodes. A lockrun that is itself a rank (RANK is set) ignores the variables, which belong
// to the launcher above it.
std::vector<std::string> with_torchruns_variables(std::vector<std::string> flags, const EnvironmentLookup& lookup);

}  // namespace lockstep::launch

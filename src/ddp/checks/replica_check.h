// Are the replicas of wrapped modules equal, bit for bit?
#pragma once

#include "lockstep/comm/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep {

// Collective over `call`, the group of the operation: compares what a wrapper of the same ranks keeps equal; nothing
// for a module without one, for null, and where the call has other ranks than the wrapper. MismatchError on all ranks,
// with the first parameter and the ranks, when parameters differ; buffers, ignored parameters and those of ranks in
// join() are left out. Where weights may differ between two averages rank 0 warns instead. `operation` begins the
// message. Sends 8 bytes a rank, and 8 a parameter once something differs.
void check_replicas(const nn::Module& module, ProcessGroup* call, const char* operation);

}  // namespace lockstep

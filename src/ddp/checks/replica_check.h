// Checks that the replicas of wrapped modules are bitwise equal.
#pragma once

#include "lockstep/comm/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep {

// Collective over `call`, the operation's group. Compares the tensors that a wrapper of the same ranks keeps equal.
// Does nothing for a module without a wrapper, for null, and if the call's ranks are not the wrapper's. If parameters
// differ, throws MismatchError on all ranks with the first parameter and the ranks. Skips buffers, ignored parameters
// and those of ranks in join(). If weights may differ between two averages, rank 0 logs a warning instead. `operation`
// begins the message. Sends 8 bytes per rank, and 8 per parameter if there is a difference.
void check_replicas(const nn::Module& module, ProcessGroup* call, const char* operation);

}  // namespace lockstep
